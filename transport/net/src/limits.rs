//! Resource limits of this process.

use std::io;

/// Raises the limit of open files and sockets (`ulimit -n`) as far as this process may: the soft limit to the hard one.
/// Returns the limit now in force.
///
/// # Errors
/// Those of `getrlimit(2)` and `setrlimit(2)`; none are expected.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) writes one `rlimit`, to which we pass an exclusive pointer.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) })?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: setrlimit(2) only reads the `rlimit` passed.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })?;
    }
    Ok(limit.rlim_cur)
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the test program again with a lower soft limit.
    #[test]
    fn the_soft_limit_rises_to_the_hard_one() {
        const INSIDE: &str = "GODWIT_TEST_OPEN_FILES";
        if let Ok(hard) = std::env::var(INSIDE) {
            assert_eq!(raise_open_files().unwrap().to_string(), hard);
            let files: Vec<_> = (0..150).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
            assert_eq!(files.len(), 150);
            return;
        }
        let own = std::env::current_exe().unwrap();
        let script = format!(
            "ulimit -Sn 64 && ulimit -Hn 200 && exec {} --exact limits::tests::the_soft_limit_rises_to_the_hard_one",
            own.display()
        );
        let status =
            std::process::Command::new("sh").args(["-c", &script]).env(INSIDE, "200").output().unwrap();
        assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    }
}
