//! Unix sockets: how `godwit` commands reach a running NF. They work across network namespaces.

use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
pub use tokio::net::UnixStream;

/// A listening Unix socket, readable and writable by its owner only. The file goes when this is dropped.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Binds to `path` (mode 0600), creating parent directories. A socket file that nobody answers on is what a
    /// killed process left behind, and is replaced.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when another process answers there; otherwise those of the file system.
    pub fn bind(path: impl AsRef<Path>) -> io::Result<Listener> {
        let path = path.as_ref().to_owned();
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        if std::fs::symlink_metadata(&path).is_ok_and(|file| file.file_type().is_socket()) {
            if std::os::unix::net::UnixStream::connect(&path).is_ok() {
                let message = format!("another process is serving {}", path.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, message));
            }
            std::fs::remove_file(&path)?;
        }
        let inner = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Listener { inner, path })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// Those of `accept(2)`.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.inner.accept().await?.0)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Nothing to do about a failure: the next bind replaces the file.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Connects to a socket file.
///
/// # Errors
/// Those of `connect(2)`: not found or refused means that no such NF runs.
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

        // A file left by a killed process is replaced.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        Listener::bind(&path).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
