//! Unix sockets, with which `godwit` commands reach a running NF. They work across network namespaces.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::net::UnixListener;
pub use tokio::net::UnixStream;

/// The file that processes lock while they bind or remove a socket in a folder.
const LOCK: &str = ".lock";

/// A listening Unix socket that only its owner can use. Dropping it removes the file.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Binds to `path`, creating parent folders. A socket file on which nobody answers was left by a
    /// killed process and is replaced.
    ///
    /// The socket has mode 0600 from the moment it is visible: it is bound in a private folder and
    /// linked to its name afterwards. Processes that bind in the same folder do so one after another, so none
    /// removes the new socket of another.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] if another process answers there; otherwise those of the file
    /// system.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Listener> {
        let path = path.as_ref().to_owned();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let _lock = lock(&path)?;
        if std::fs::symlink_metadata(&path).is_ok_and(|file| file.file_type().is_socket()) {
            match std::os::unix::net::UnixStream::connect(&path) {
                Ok(_) => {
                    let message = format!("another process is serving {}", path.display());
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(&path)?;
                }
                // For instance its owner is another user.
                Err(error) => return Err(error),
            }
        }
        let (inner, inode) = bind_private(&path)?;
        Ok(Listener { inner, path, inode })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Those of `accept(2)`.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.inner.accept().await?.0)
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _lock = lock(&self.path);
        // Somebody may have removed the file, and another process bound there. If removing fails, the next bind
        // replaces the file.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Waits until no other process binds or removes a socket in the folder of `path`. Dropping the file ends this. The file
/// stays, because a process may wait for it.
fn lock(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file =
        options.create(true).truncate(false).write(true).mode(0o600).open(path.with_file_name(LOCK))?;
    file.lock()?;
    Ok(file)
}

/// Binds a socket that has mode 0600 before anybody else can reach it. Returns its inode as well.
fn bind_private(path: &Path) -> io::Result<(UnixListener, u64)> {
    // The NFs of a process bind their sockets at the same time, each in its own folder. The name is
    // short because paths of sockets have at most 107 octets.
    static BOUND: AtomicU32 = AtomicU32::new(0);
    let number = BOUND.fetch_add(1, Ordering::Relaxed);
    let private = path.with_file_name(format!(".{}-{number}", std::process::id()));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    match std::fs::DirBuilder::new().mode(0o700).create(&private) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // A killed process with this identifier left it.
            std::fs::remove_dir_all(&private)?;
            std::fs::DirBuilder::new().mode(0o700).create(&private)?;
        }
        created => created?,
    }
    let hidden = private.join(name);
    let bound = (|| {
        let listener = UnixListener::bind(&hidden)?;
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
        // A link, not a rename, which would replace a file of another kind.
        std::fs::hard_link(&hidden, path)?;
        Ok((listener, std::fs::symlink_metadata(&hidden)?.ino()))
    })();
    std::fs::remove_dir_all(&private)?;
    bound.map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            io::Error::new(io::ErrorKind::AddrInUse, format!("{} exists already", path.display()))
        }
        _ => error,
    })
}

/// Connects to a socket file.
///
/// # Errors
/// Those of `connect(2)`: not found or refused means that the NF does not run.
pub async fn connect(path: impl AsRef<Path>) -> io::Result<UnixStream> {
    UnixStream::connect(path).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_owner_may_connect_and_the_file_goes_away() {
        let directory = std::env::temp_dir().join(format!("godwit-uds-{}", std::process::id()));
        let path = directory.join("nf.sock");
        let listener = Listener::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Listener::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        connect(&path).await.unwrap();
        drop(listener);
        assert!(!path.exists());

        // Another kind of file with that name is not replaced.
        std::fs::write(&path, "not a socket").unwrap();
        assert_eq!(Listener::bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        std::fs::remove_file(&path).unwrap();

        // A file left by a killed process is replaced.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        Listener::bind(&path).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// The NFs of one process share a folder, and all bind at the start of the process.
    #[tokio::test]
    async fn sockets_of_one_folder_are_bound_at_the_same_time() {
        let directory = std::env::temp_dir().join(format!("godwit-uds-many-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let runtime = tokio::runtime::Handle::current();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (runtime, directory) = (&runtime, &directory);
                scope.spawn(move || {
                    let _entered = runtime.enter();
                    for _ in 0..100 {
                        Listener::bind(directory.join(format!("nf-{thread}.sock"))).unwrap();
                    }
                });
            }
        });
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// Of several that start where a killed process left a socket, one serves, and its socket stays.
    #[tokio::test]
    async fn one_of_several_takes_over_a_socket_that_was_left() {
        const STARTERS: usize = 4;
        let directory = std::env::temp_dir().join(format!("godwit-uds-left-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("nf.sock");
        let runtime = tokio::runtime::Handle::current();
        for round in 0..1_000 {
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let together = std::sync::Barrier::new(STARTERS);
            let start = || {
                let _entered = runtime.enter();
                together.wait();
                Listener::bind(&path)
            };
            let bound: Vec<io::Result<Listener>> = std::thread::scope(|scope| {
                let starters: Vec<_> = (0..STARTERS).map(|_| scope.spawn(start)).collect();
                starters.into_iter().map(|starter| starter.join().unwrap()).collect()
            });
            let serving = bound.iter().filter(|bound| bound.is_ok()).count();
            assert_eq!(serving, 1, "round {round}: {bound:?}");
            let refused = bound.iter().filter_map(|bound| bound.as_ref().err());
            assert!(refused.map(io::Error::kind).all(|kind| kind == io::ErrorKind::AddrInUse), "{bound:?}");
            connect(&path).await.unwrap();
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// A listener whose file was removed does not remove the socket that another has bound there since.
    #[tokio::test]
    async fn the_socket_of_another_stays() {
        let directory = std::env::temp_dir().join(format!("godwit-uds-other-{}", std::process::id()));
        let path = directory.join("nf.sock");
        let first = Listener::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = Listener::bind(&path).unwrap();
        drop(first);
        connect(&path).await.unwrap();
        drop(second);
        assert!(!path.exists());
        std::fs::remove_dir_all(&directory).unwrap();
    }

    /// A process that looks continuously never sees the socket with another mode than 0600.
    #[tokio::test]
    async fn the_socket_never_has_another_mode() {
        let directory = std::env::temp_dir().join(format!("godwit-uds-mode-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("nf.sock");
        let done = std::sync::atomic::AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut seen = std::collections::BTreeSet::new();
                while !done.load(Ordering::Relaxed) {
                    if let Ok(found) = std::fs::metadata(&path) {
                        seen.insert(found.permissions().mode() & 0o777);
                    }
                }
                seen
            });
            for _ in 0..500 {
                drop(Listener::bind(&path).unwrap());
            }
            let _last = Listener::bind(&path).unwrap();
            crate::time::sleep_thread(crate::time::Duration::from_millis(20));
            done.store(true, Ordering::Relaxed);
            watcher.join().unwrap()
        });
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0o600]);
        let left: Vec<_> =
            std::fs::read_dir(&directory).unwrap().flatten().map(|file| file.file_name()).collect();
        assert_eq!(left, [LOCK]);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
