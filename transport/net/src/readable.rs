//! Waits for a descriptor of another owner, such as a TUN device, without reading from it.

use std::io;
use std::os::fd::BorrowedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits until `fd` can be read. Cancel-safe.
///
/// # Errors
/// The descriptor cannot be waited for, as a plain file, or the process has no free descriptor.
pub async fn readable(fd: BorrowedFd<'_>) -> io::Result<()> {
    let own = fd.try_clone_to_owned()?;
    // SAFETY: the `AsyncFd` owns the descriptor that it is made from, and an `OwnedFd` stays open and the same.
    let watched = unsafe { AsyncFd::register_with_interest(own, Interest::READABLE) }?;
    watched.readable().await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_pipe_is_readable_when_something_was_written() {
        let (reader, mut writer) = io::pipe().unwrap();
        let soon = Duration::from_millis(20);
        assert!(crate::time::timeout(soon, readable(reader.as_fd())).await.is_err());
        writer.write_all(b"x").unwrap();
        readable(reader.as_fd()).await.unwrap();
        // Nothing was read, so it is still readable.
        readable(reader.as_fd()).await.unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(readable(file.as_fd()).await.is_err());
    }
}
