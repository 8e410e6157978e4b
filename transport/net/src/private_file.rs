//! Files with secrets: keys of the store, private keys of SUCI and TLS, shared secrets.
//!
//! [`read`] refuses a file that other users than its owner can open. [`create`] and [`replace`] write such
//! a file completely or not at all, even if the process is killed.
//!
//! systemd passes secrets as files in `$CREDENTIALS_DIRECTORY` (`LoadCredential=`), which systemd
//! protects. [`credential`] finds them, and [`read_credential`] reads them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Largest secret in octets: a certificate chain with its key fits.
const SIZE_MAX: u64 = 64 * 1024;

/// Why a file with a secret could not be read.
#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    /// The file cannot be opened or read.
    #[error("cannot read {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Other users may open the file.
    #[error("{0} holds a secret, but has mode {mode:04o}: chmod 0600 {0}", path.display())]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Neither this user nor root owns the file. (Root may read the secrets of the user that the core
    /// runs as.)
    #[error("{0} holds a secret, but belongs to user {owner}, who could replace it: chown it to {user} or to root", path.display())]
    ForeignOwner {
        /// The file.
        path: PathBuf,
        /// The file's owner.
        owner: u32,
        /// The user that wants to read it.
        user: u32,
    },
    /// It is a folder, a device or much too large.
    #[error("{} is no file with a secret: a text of at most 64 KiB is expected", path.display())]
    NotASecret {
        /// The file.
        path: PathBuf,
    },
}

impl PrivateFileError {
    /// Whether there is no such file.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Unreadable { error, .. } if error.kind() == io::ErrorKind::NotFound)
    }
}

/// Reads a text file that only its owner (this user or root) may open.
///
/// # Errors
/// The file is missing, open to other users, of another owner, or not a text of reasonable size.
pub fn read(path: &Path) -> Result<String, PrivateFileError> {
    read_checked(path, true)
}

/// Reads a file that [`credential`] found. systemd protects it, with modes of its own.
///
/// # Errors
/// The file is missing, or not a text of reasonable size.
pub fn read_credential(path: &Path) -> Result<String, PrivateFileError> {
    read_checked(path, false)
}

fn read_checked(path: &Path, check_owner: bool) -> Result<String, PrivateFileError> {
    let path = || path.to_owned();
    let unreadable = |error| PrivateFileError::Unreadable { path: path(), error };
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path()).map_err(unreadable)?;
    // The opened file is examined, not its name, which could refer to another file by now.
    let found = file.metadata().map_err(unreadable)?;
    if !found.is_file() || found.len() > SIZE_MAX {
        return Err(PrivateFileError::NotASecret { path: path() });
    }
    if check_owner {
        let user = nix::unistd::geteuid().as_raw();
        if user != 0 && found.uid() != user && found.uid() != 0 {
            return Err(PrivateFileError::ForeignOwner { path: path(), owner: found.uid(), user });
        }
        if found.mode() & 0o077 != 0 {
            return Err(PrivateFileError::OpenToOthers { path: path(), mode: found.mode() & 0o7777 });
        }
    }
    let mut text = String::new();
    match file.take(SIZE_MAX).read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(PrivateFileError::NotASecret { path: path() })
        }
        Err(error) => Err(unreadable(error)),
    }
}

/// Distinguishes the files that this process creates.
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Creates a file of mode 0600 with this text; it is on the disk when the call returns. Missing folders
/// are created. The file appears completely or not at all, and an existing file is not changed.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`]; otherwise those of the file system.
pub fn create(path: &Path, text: &str) -> io::Result<()> {
    write_whole(path, text, |unfinished| {
        let linked = std::fs::hard_link(unfinished, path);
        // What a killed process of this number left behind is ours to replace; nothing else has this name.
        let removed = std::fs::remove_file(unfinished);
        linked.and(removed)
    })
}

/// The same, but an existing file is replaced: a reader sees the old text or the new one.
///
/// # Errors
/// Those of the file system.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    write_whole(path, text, |unfinished| std::fs::rename(unfinished, path))
}

/// Writes a file beside `path`, which `place` then gives its name.
fn write_whole(path: &Path, text: &str, place: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder)?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let unfinished = folder.join(format!(".{name}.{}-{number}", std::process::id()));
    if let Err(error) = write_new(&unfinished, text) {
        let _ = std::fs::remove_file(&unfinished);
        return Err(error);
    }
    place(&unfinished)?;
    File::open(folder)?.sync_all()
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The file of a systemd credential; `None` if this process has no credential of that name.
pub fn credential(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("CREDENTIALS_DIRECTORY")?;
    let path = PathBuf::from(folder).join(name);
    path.is_file().then_some(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("godwit-private-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_secret_is_created_once_and_only_for_its_owner() {
        let folder = Folder::new("create");
        let path = folder.0.join("deep/er/secret");
        create(&path, "one\n").unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(create(&path, "two\n").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(read(&path).unwrap(), "one\n");
        let files = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "nothing unfinished stays");
    }

    /// Several at the same time: one creates the file, all read the same text.
    #[test]
    fn of_many_creators_one_wins() {
        let folder = Folder::new("race");
        let path = folder.0.join("secret");
        let winners: usize = std::thread::scope(|scope| {
            let creators: Vec<_> = (0..8)
                .map(|number: u8| {
                    let path = &path;
                    scope.spawn(move || {
                        let created = create(path, &number.to_string());
                        // The others find the complete text of the first.
                        assert_eq!(read(path).unwrap().len(), 1);
                        usize::from(created.is_ok())
                    })
                })
                .collect();
            creators.into_iter().map(|creator| creator.join().unwrap()).sum()
        });
        assert_eq!(winners, 1);
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "nothing unfinished stays");
    }

    #[test]
    fn files_open_to_others_are_refused_with_the_remedy() {
        let folder = Folder::new("mode");
        let path = folder.0.join("secret");
        create(&path, "x").unwrap();
        for mode in [0o640, 0o604, 0o660, 0o601] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("{mode:04o}")) && error.contains("chmod 0600"), "{error}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
        assert_eq!(read(&path).unwrap(), "x");
        assert!(matches!(read(&folder.0), Err(PrivateFileError::NotASecret { .. })));
        assert!(read(&folder.0.join("none")).unwrap_err().is_not_found());
        let large = folder.0.join("large");
        create(&large, &"x".repeat(SIZE_MAX as usize + 1)).unwrap();
        assert!(matches!(read(&large), Err(PrivateFileError::NotASecret { .. })));
    }
}
