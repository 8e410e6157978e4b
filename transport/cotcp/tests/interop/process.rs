//! Programs the tests need: an error in CI when they are missing, a note elsewhere; and no wait without an end.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Whether `program` is there. In CI it has to be.
pub fn present(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{program} is missing: scripts/setup.sh test");
        eprintln!("skipped: {program} is missing; scripts/setup.sh test installs it");
    }
    found
}

/// A started program, ended with this value.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end and gives what it wrote to its standard output; it has `limit` for it, and must succeed.
pub fn output(command: &mut Command, limit: Duration) -> String {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let read = |mut pipe: Box<dyn std::io::Read + Send>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            pipe.read_to_end(&mut text).map(|_| String::from_utf8_lossy(&text).into_owned())
        })
    };
    let out = read(Box::new(running.0.stdout.take().unwrap()));
    let err = read(Box::new(running.0.stderr.take().unwrap()));
    let status =
        wait(&mut running.0, limit).unwrap_or_else(|| panic!("{command:?}: not done after {limit:?}"));
    let (out, err) = (out.join().unwrap().unwrap(), err.join().unwrap().unwrap());
    assert!(status.success(), "{command:?}: {status}\n{out}\n{err}");
    out
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}
