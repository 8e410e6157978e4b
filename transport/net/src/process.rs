//! Helper processes that end with this process at the latest, optionally in another network namespace.
//!
//! Every child is started with the parent-death signal SIGKILL. That signal is sent when the *thread*
//! that forked ends, so one thread that lives as long as the process forks all children; even `kill -9`
//! on this process ends them. (A program with set-user-ID bits or file capabilities clears the signal
//! when it starts: give it a time limit.)
//!
//! The exception is [`Command::detach`]: such a process goes on when this one ends, and is found again by a file that it holds
//! locked as long as it lives.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};

pub use nix::sys::signal::Signal;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader, Lines};
use tokio::net::unix::pipe;

use crate::netns::NetNs;
use crate::time::{Duration, timeout};

/// A program to start. Standard input is empty; output goes to our own output by default.
#[derive(Debug)]
pub struct Command {
    inner: std::process::Command,
    namespace: Option<NetNs>,
}

impl Command {
    /// A command for a program, given by its name in `PATH` or by a path.
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        let mut inner = std::process::Command::new(program);
        inner.stdin(Stdio::null());
        Command { inner, namespace: None }
    }

    /// Runs the program in `namespace`.
    pub fn namespace(mut self, namespace: &NetNs) -> Command {
        self.namespace = Some(namespace.clone());
        self
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Command {
        self.inner.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Command {
        self.inner.args(arguments);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Command {
        self.inner.env(name, value);
        self
    }

    /// Makes standard output readable with [`Child::take_stdout`].
    pub fn pipe_stdout(mut self) -> Command {
        self.inner.stdout(Stdio::piped());
        self
    }

    /// Makes standard error readable with [`Child::take_stderr`].
    pub fn pipe_stderr(mut self) -> Command {
        self.inner.stderr(Stdio::piped());
        self
    }

    /// Redirects standard output (to a file, `/dev/null`).
    pub fn stdout(mut self, to: impl Into<Stdio>) -> Command {
        self.inner.stdout(to);
        self
    }

    /// Redirects standard error.
    pub fn stderr(mut self, to: impl Into<Stdio>) -> Command {
        self.inner.stderr(to);
        self
    }

    /// Starts the program. Needs a tokio runtime.
    ///
    /// # Errors
    /// Those of `fork`, `setns` and `exec`: program not found, namespace not enterable.
    pub fn spawn(mut self) -> io::Result<Child> {
        let parent = std::process::id() as libc::pid_t;
        let namespace = self.namespace.take();
        let prepare = move || {
            if let Some(namespace) = &namespace {
                // SAFETY: setns(2) takes a descriptor, which `namespace` keeps open in this copy of the process.
                check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
            }
            // Its own process group: only this process handles an interrupt from the terminal.
            // SAFETY: setpgid(2) takes integers only.
            check(unsafe { libc::setpgid(0, 0) })?;
            // SAFETY: this prctl takes integers only.
            check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) })?;
            // SAFETY: getppid(2) takes nothing. The parent may have died before the line above took effect.
            if unsafe { libc::getppid() } != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made; nothing allocates or takes a lock.
        unsafe { self.inner.pre_exec(prepare) };
        Child::new(fork(self.inner)?)
    }

    /// Starts the program as a process that outlives this one, in a session of its own. It holds `lock` until it ends, whoever started
    /// it: so [`holder`] finds it, and of two starts with one file only one succeeds, even if the first was by a process that was killed
    /// meanwhile.
    ///
    /// # Errors
    /// As [`Command::spawn`]; [`io::ErrorKind::WouldBlock`]: a process that holds the file is running.
    pub fn detach(mut self, lock: &Path) -> io::Result<u32> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(lock)?;
        let namespace = self.namespace.take();
        let prepare = move || {
            if let Some(namespace) = &namespace {
                // SAFETY: setns(2) takes a descriptor, which `namespace` keeps open in this copy of the process.
                check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
            }
            // SAFETY: setsid(2) takes nothing.
            check(unsafe { libc::setsid() })?;
            // SAFETY: the descriptor is open, and F_SETFD takes an integer. The program inherits it, and with it the lock.
            check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) })?;
            // SAFETY: F_SETLK reads one `flock`, which outlives the call.
            check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const WHOLE_FILE) })?;
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made; nothing allocates or takes a lock.
        unsafe { self.inner.pre_exec(prepare) };
        let mut child = fork(self.inner)?;
        let id = child.id();
        // Whoever starts a process learns when it ends; otherwise the kernel keeps it.
        std::thread::Builder::new().name("reaper".to_owned()).spawn(move || child.wait())?;
        Ok(id)
    }

    /// Runs the program to its end and collects its standard output and error. After `limit` the
    /// program is killed.
    ///
    /// # Errors
    /// As [`Command::spawn`]; [`io::ErrorKind::TimedOut`].
    pub async fn output(self, limit: Duration) -> io::Result<std::process::Output> {
        let mut child = self.pipe_stdout().pipe_stderr().spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let all = async {
            let (stdout, stderr, status) = tokio::join!(drain(stdout), drain(stderr), child.wait());
            Ok(std::process::Output { status: status?, stdout: stdout?, stderr: stderr? })
        };
        match timeout(limit, all).await {
            Ok(result) => result,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("did not end within {limit:?}"))),
        }
    }
}

/// A lock for writing on a whole file.
static WHOLE_FILE: libc::flock = libc::flock {
    l_type: libc::F_WRLCK as libc::c_short,
    l_whence: libc::SEEK_SET as libc::c_short,
    l_start: 0,
    l_len: 0,
    l_pid: 0,
};

/// The process that was started with this file by [`Command::detach`], if it runs.
///
/// # Errors
/// The file cannot be opened.
pub fn holder(lock: &Path) -> io::Result<Option<u32>> {
    let file = match File::options().read(true).write(true).open(lock) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut held = WHOLE_FILE;
    // SAFETY: F_GETLK reads and writes one `flock`, which outlives the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut held) })?;
    Ok((held.l_type != libc::F_UNLCK as libc::c_short).then_some(held.l_pid.cast_unsigned()))
}

/// Ends the process that [`holder`] finds: SIGTERM, after `grace` SIGKILL. No error if there is none.
///
/// # Errors
/// It belongs to another user, or does not end.
pub async fn end_holder(lock: &Path, grace: Duration) -> io::Result<()> {
    for (signal, patience) in [(Signal::SIGTERM, grace), (Signal::SIGKILL, Duration::from_secs(5))] {
        let Some(id) = holder(lock)? else { return Ok(()) };
        // SAFETY: pidfd_open(2) takes integers and returns a new descriptor or -1.
        let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, id as libc::pid_t, 0) } as libc::c_int);
        let Ok(fd) = fd else { continue };
        // SAFETY: the kernel just returned `fd`, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // The number may have become another process's before it was opened: then that one does not hold the file.
        if holder(lock)? != Some(id) {
            continue;
        }
        // SAFETY: pidfd_send_signal(2) takes an open descriptor, integers, and no information here.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                fd.as_raw_fd(),
                signal as libc::c_int,
                std::ptr::null::<()>(),
                0,
            )
        };
        check(sent as libc::c_int)?;
        let until = crate::time::now() + patience;
        while crate::time::now() < until {
            if holder(lock)?.is_none() {
                return Ok(());
            }
            crate::time::sleep(Duration::from_millis(10)).await;
        }
    }
    match holder(lock)? {
        None => Ok(()),
        Some(id) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("process {id} does not end"))),
    }
}

/// A running helper process; killed when dropped.
#[derive(Debug)]
pub struct Child {
    child: std::process::Child,
    /// Becomes readable when the process ends.
    pid_fd: AsyncFd<OwnedFd>,
    stdout: Option<pipe::Receiver>,
    stderr: Option<pipe::Receiver>,
    status: Option<ExitStatus>,
}

impl Child {
    fn new(mut child: std::process::Child) -> io::Result<Child> {
        let setup = |child: &mut std::process::Child| {
            // SAFETY: pidfd_open(2) takes integers and returns a new descriptor or -1.
            let fd = unsafe {
                libc::syscall(libc::SYS_pidfd_open, child.id() as libc::pid_t, libc::PIDFD_NONBLOCK)
            };
            let fd = check(fd as libc::c_int)?;
            // SAFETY: the kernel just returned `fd`, and nobody else owns it; an `OwnedFd` stays the same open
            // descriptor for as long as the registration holds it.
            let pid_fd = unsafe { AsyncFd::register(OwnedFd::from_raw_fd(fd)) }?;
            let stdout =
                child.stdout.take().map(|end| pipe::Receiver::from_owned_fd(end.into())).transpose()?;
            let stderr =
                child.stderr.take().map(|end| pipe::Receiver::from_owned_fd(end.into())).transpose()?;
            Ok((pid_fd, stdout, stderr))
        };
        match setup(&mut child) {
            Ok((pid_fd, stdout, stderr)) => Ok(Child { child, pid_fd, stdout, stderr, status: None }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// The process identifier.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The reading end of standard output; `None` after the first call, or without
    /// [`Command::pipe_stdout`].
    pub fn take_stdout(&mut self) -> Option<Lines<BufReader<pipe::Receiver>>> {
        self.stdout.take().map(|end| BufReader::new(end).lines())
    }

    /// The reading end of standard error; likewise.
    pub fn take_stderr(&mut self) -> Option<Lines<BufReader<pipe::Receiver>>> {
        self.stderr.take().map(|end| BufReader::new(end).lines())
    }

    /// The exit status, if the process has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Waits until the process has ended. Cancel-safe.
    ///
    /// # Errors
    /// Those of `waitpid(2)`; none are expected.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.try_wait() {
            return Ok(status);
        }
        let _ended = self.pid_fd.readable().await?;
        let status = self.child.wait()?;
        self.status = Some(status);
        Ok(status)
    }

    /// Sends a signal; does nothing if the process has ended.
    pub fn signal(&mut self, signal: Signal) {
        if self.try_wait().is_none() {
            // The process is not reaped yet, so the identifier is not reused.
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as libc::pid_t), signal);
        }
    }

    /// Sends SIGTERM, waits up to `grace`, then kills the process.
    ///
    /// # Errors
    /// As [`Child::wait`].
    pub async fn stop(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.signal(Signal::SIGTERM);
        if let Ok(result) = timeout(grace, self.wait()).await {
            return result;
        }
        self.signal(Signal::SIGKILL);
        self.wait().await
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

async fn drain(end: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut end) = end {
        end.read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

fn check(status: libc::c_int) -> io::Result<libc::c_int> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(status) }
}

type Fork = (std::process::Command, mpsc::SyncSender<io::Result<std::process::Child>>);

/// Forks on the thread that lives as long as the process (see the module documentation).
fn fork(command: std::process::Command) -> io::Result<std::process::Child> {
    static FORKER: OnceLock<Option<mpsc::Sender<Fork>>> = OnceLock::new();
    let gone = || io::Error::other("the thread that starts processes is gone");
    let forker = FORKER.get_or_init(|| {
        let (requests, queue) = mpsc::channel::<Fork>();
        let serve = move || {
            for (mut command, answer) in queue {
                // Nobody waits for the child: dropping it would leave it running, so it is killed.
                if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        };
        std::thread::Builder::new().name("forker".to_owned()).spawn(serve).ok().map(|_| requests)
    });
    let (answer, wait) = mpsc::sync_channel(1);
    forker.as_ref().ok_or_else(gone)?.send((command, answer)).map_err(|_| gone())?;
    wait.recv().map_err(|_| gone())?
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn output_status_and_time_limit() {
        let output =
            Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"]).output(LONG).await.unwrap();
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(output.status.code(), Some(3));
        let error = Command::new("sleep").arg("100").output(Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(Command::new("/no/such/program").spawn().is_err());
    }

    #[tokio::test]
    async fn a_detached_process_is_found_by_its_file_and_is_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join("lock");
        assert_eq!(holder(&lock).unwrap(), None);
        let start = || Command::new("sh").args(["-c", "trap '' TERM; sleep 100 & wait; wait"]).detach(&lock);
        let id = start().unwrap();
        assert_eq!(holder(&lock).unwrap(), Some(id));
        let twice = start().unwrap_err();
        assert_eq!(twice.kind(), io::ErrorKind::WouldBlock, "{twice}");
        assert_eq!(holder(&lock).unwrap(), Some(id));
        // It does not heed SIGTERM, once it has said so. Its own child does not hold the file.
        crate::time::sleep(Duration::from_millis(100)).await;
        let group = nix::unistd::Pid::from_raw(-(id as libc::pid_t));
        end_holder(&lock, Duration::from_millis(200)).await.unwrap();
        assert_eq!(holder(&lock).unwrap(), None);
        let _ = nix::sys::signal::kill(group, Signal::SIGKILL);
        end_holder(&lock, LONG).await.unwrap();
        let next = Command::new("sleep").arg("100").detach(&lock).unwrap();
        assert_ne!(next, id);
        end_holder(&lock, LONG).await.unwrap();
    }

    #[tokio::test]
    async fn runs_inside_the_namespace_and_lines_can_be_read() {
        let Some(namespace) = NetNs::for_test() else { return };
        let mut child = Command::new("sh")
            .args(["-c", "readlink /proc/self/ns/net; tail -n +3 /proc/net/dev | cut -d: -f1; sleep 100"])
            .namespace(&namespace)
            .pipe_stdout()
            .spawn()
            .unwrap();
        let mut lines = child.take_stdout().unwrap();
        let inside = lines.next_line().await.unwrap().unwrap();
        let expected = format!("net:[{}]", nix::sys::stat::fstat(&namespace).unwrap().st_ino);
        assert_eq!(inside, expected);
        assert_eq!(lines.next_line().await.unwrap().unwrap().trim(), "lo");
        assert!(child.try_wait().is_none());
        let status = child.stop(LONG).await.unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGTERM));
    }

    #[tokio::test]
    async fn a_dropped_child_is_dead_and_a_thread_that_ends_kills_none() {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = format!("/proc/{}", child.id());
        drop(child);
        assert!(!Path::new(&process).exists());

        let runtime = tokio::runtime::Handle::current();
        let mut child = std::thread::spawn(move || {
            let _entered = runtime.enter();
            Command::new("sleep").arg("100").spawn().unwrap()
        })
        .join()
        .unwrap();
        crate::time::sleep(Duration::from_millis(50)).await;
        assert!(child.try_wait().is_none(), "the parent-death signal must not follow the calling thread");
    }

    /// Even `kill -9` ends the helpers. The process in the middle is this test program.
    #[test]
    fn killing_us_kills_them() {
        if std::env::var_os("GODWIT_TEST_MIDDLE").is_some() {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let _entered = runtime.enter();
            let child = Command::new("sleep").arg("100").spawn().unwrap();
            println!("\nchild={}", child.id());
            loop {
                std::thread::park();
            }
        }
        use std::io::BufRead;
        let mut middle = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::tests::killing_us_kills_them", "--nocapture"])
            .env("GODWIT_TEST_MIDDLE", "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = io::BufReader::new(middle.stdout.take().unwrap());
        let child =
            output.lines().find_map(|line| line.unwrap().strip_prefix("child=").map(str::to_owned)).unwrap();
        let stat = format!("/proc/{child}/stat");
        assert!(Path::new(&stat).exists());
        middle.kill().unwrap();
        middle.wait().unwrap();
        // The process that adopts orphans here may be slow to reap them: a dead helper is absent or a
        // zombie.
        let dead = || std::fs::read_to_string(&stat).map_or(true, |text| text.contains(") Z"));
        for _ in 0..200 {
            if dead() {
                return;
            }
            crate::time::sleep_thread(Duration::from_millis(10));
        }
        panic!("the grandchild survived");
    }
}
