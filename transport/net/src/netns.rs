//! Network namespaces held by file descriptors.
//!
//! A [`NetNs`] has no name: it exists as long as a descriptor, a process or a socket in it, so it needs
//! no clean-up however a process ends. Other processes open it as `/proc/<pid>/fd/<n>`
//! ([`NetNs::path`]).
//!
//! A thread belongs to one namespace, and a socket to the one in which it was opened. So work in
//! another namespace is done on a separate thread ([`NetNs::enter`], [`NetNs::spawn`],
//! [`NetNs::runtime`]). Sockets opened there may then be used from any thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace; clones share the descriptor.
#[derive(Clone, Debug)]
pub struct NetNs {
    fd: Arc<OwnedFd>,
}

impl NetNs {
    /// Creates an anonymous namespace with its loopback interface up.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN: call [`enter_user_namespace`] at the start of the program.
    pub fn new() -> io::Result<NetNs> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let namespace = NetNs::current()?;
            loopback_up()?;
            Ok(namespace)
        })
    }

    /// The calling thread's namespace.
    ///
    /// # Errors
    /// Those of opening `/proc/thread-self/ns/net`.
    pub fn current() -> io::Result<NetNs> {
        NetNs::from_path("/proc/thread-self/ns/net")
    }

    /// A namespace by path: `/proc/<pid>/ns/net`, `/proc/<pid>/fd/<n>` or `/run/netns/<name>`.
    ///
    /// # Errors
    /// Those of `open(2)`. Whether it is a network namespace shows when it is first used.
    pub fn from_path(path: impl AsRef<Path>) -> io::Result<NetNs> {
        Ok(NetNs { fd: Arc::new(File::open(path)?.into()) })
    }

    /// The path by which other processes of this user open the namespace, while this process lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()))
    }

    /// Moves the calling thread into the namespace permanently. If the thread is in it already, the
    /// call does nothing and needs no privilege.
    ///
    /// # Errors
    /// `EPERM` without CAP_SYS_ADMIN over the namespace; `EINVAL` if it is no network namespace.
    pub fn join(&self) -> io::Result<()> {
        let (here, there) = (nix::sys::stat::fstat(&NetNs::current()?)?, nix::sys::stat::fstat(self)?);
        if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino) {
            return Ok(());
        }
        Ok(setns(self.fd.as_fd(), CloneFlags::CLONE_NEWNET)?)
    }

    /// Runs `work` in the namespace and waits for it. The calling thread stays in its namespace. The
    /// caller's tokio runtime stays entered, so that sockets opened in `work` register with it.
    ///
    /// # Errors
    /// As [`NetNs::join`], or no thread could be started.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let runtime = tokio::runtime::Handle::try_current().ok();
        on_thread(|| {
            self.join()?;
            let _entered = runtime.as_ref().map(|handle| handle.enter());
            Ok(work())
        })
    }

    /// Starts a named thread inside the namespace.
    ///
    /// # Errors
    /// As [`NetNs::enter`].
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<thread::JoinHandle<T>> {
        // Tests here whether entering works, so that the thread cannot fail to enter.
        self.enter(|| ())?;
        let namespace = self.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            namespace
                .join()
                .expect("the namespace was entered a moment ago, and is held open by its descriptor");
            work()
        })
    }

    /// Builds a multi-threaded tokio runtime whose workers run in the namespace.
    ///
    /// # Errors
    /// As [`NetNs::join`], or threads could not be started.
    pub fn runtime(&self, workers: usize) -> io::Result<tokio::runtime::Runtime> {
        let namespace = self.clone();
        // Tests here whether entering works, because `on_thread_start` cannot report an error.
        self.enter(|| ())?;
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .on_thread_start(move || {
                if let Err(error) = namespace.join() {
                    tracing::error!(%error, "worker thread stays outside its namespace");
                }
            })
            .build()
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for NetNs {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}

/// Lets an ordinary user configure networks: moves the process into new user, network and mount
/// namespaces, in which the user is root. The process must have a single thread.
///
/// # Errors
/// `EINVAL` if there are other threads; `EPERM` or `ENOSPC` if the system forbids user namespaces.
pub fn enter_user_namespace() -> io::Result<()> {
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
    // user_namespaces(7): group mapping by an unprivileged process needs setgroups off first.
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    loopback_up()
}

/// Brings the loopback interface of the calling thread's namespace up.
///
/// # Errors
/// Those of the interface ioctls: `EPERM` without CAP_NET_ADMIN.
pub fn loopback_up() -> io::Result<()> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let fd = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the descriptor is open and SIOCSIFFLAGS reads one `ifreq`, which outlives the call.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Runs `work` on a temporary thread: namespaces belong to threads, and the caller's must not change.
fn on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("netns".to_owned()).spawn_scoped(scope, work)?;
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
impl NetNs {
    /// A namespace for a test; `None` if this user may not create one. Then the test passes, except in
    /// CI.
    pub(crate) fn for_test() -> Option<NetNs> {
        let namespace = NetNs::new();
        let excused = !nix::unistd::geteuid().is_root() && std::env::var_os("CI").is_none();
        assert!(namespace.is_ok() || excused, "this test needs a network namespace: {namespace:?}");
        namespace.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(namespace: &NetNs) -> u64 {
        nix::sys::stat::fstat(namespace).unwrap().st_ino
    }

    #[test]
    fn namespaces_are_apart_and_the_caller_stays() {
        let Some(namespace) = NetNs::for_test() else { return };
        let home = NetNs::current().unwrap();
        let inside = namespace.enter(|| inode(&NetNs::current().unwrap())).unwrap();
        assert_eq!(inside, inode(&namespace));
        assert_ne!(inside, inode(&home));
        assert_eq!(inode(&NetNs::current().unwrap()), inode(&home));

        let thread = namespace.clone().spawn("t", || inode(&NetNs::current().unwrap())).unwrap();
        assert_eq!(thread.join().unwrap(), inside);

        let runtime = namespace.runtime(1).unwrap();
        let seen = runtime
            .block_on(async { tokio::spawn(async { inode(&NetNs::current().unwrap()) }).await.unwrap() });
        assert_eq!(seen, inside);
        assert_eq!(inode(&NetNs::from_path(namespace.path()).unwrap()), inside);
    }

    #[tokio::test]
    async fn loopback_is_up_and_sockets_outlive_the_visit() {
        let Some(namespace) = NetNs::for_test() else { return };
        let a =
            namespace.enter(|| crate::udp::bind_std("127.0.0.1:4000".parse().unwrap(), Default::default()));
        let a = tokio::net::UdpSocket::from_std(a.unwrap().unwrap()).unwrap();
        // The same port is free in our own namespace: the socket is in the other one.
        let b = namespace.enter(|| crate::udp::bind_std("127.0.0.1:0".parse().unwrap(), Default::default()));
        let b = tokio::net::UdpSocket::from_std(b.unwrap().unwrap()).unwrap();
        b.send_to(b"in", "127.0.0.1:4000").await.unwrap();
        let mut buffer = [0; 4];
        assert_eq!(a.recv(&mut buffer).await.unwrap(), 2);
    }
}
