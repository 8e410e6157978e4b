//! The driver for anchors that are processes of this machine, in a network namespace.
//!
//! The anchor and its agent outlive the orchestrator. Each holds `<run_dir>/<host>-anchor.lock` (or `-agent`) as long as it lives; the
//! kernel tells whose lock it is. So a new life of the orchestrator finds what an earlier one has started, whenever that was killed, and
//! nothing runs twice. Output goes to `<run_dir>/<host>-anchor.log`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use net::netns::NetNs;
use net::process::{self, Command};
use net::time::Duration;

use super::{Doing, Driver, DriverError};
use crate::config::{self, Host};

/// How long a process may take to end when it is asked to.
const GRACE: Duration = Duration::from_secs(5);
/// The processes of a host, in the order in which they are started.
const ANCHOR: &str = "anchor";
const PARTS: [&str; 2] = [ANCHOR, "agent"];

/// The driver.
#[derive(Debug)]
pub struct Processes {
    program: PathBuf,
    run_dir: PathBuf,
}

impl Processes {
    /// A driver that starts `program`, which is `godwit`, and has its files in `run_dir`.
    pub fn new(program: PathBuf, run_dir: PathBuf) -> Processes {
        Processes { program, run_dir }
    }

    fn lock(&self, host: &Host, part: &str) -> PathBuf {
        self.run_dir.join(format!("{}-{part}.lock", host.name))
    }

    fn command(&self, host: &Host, part: &str, namespace: &NetNs) -> io::Result<Command> {
        let log = self.run_dir.join(format!("{}-{part}.log", host.name));
        let log = File::options().create(true).append(true).open(log)?;
        let configuration = host.configuration.clone().unwrap_or_default();
        let command = Command::new(&self.program);
        let command = if part == ANCHOR {
            command.arg("run").arg("-c").arg(configuration).arg("--nf").arg(host.nfs.join(","))
        } else {
            let own = host.agent_configuration.clone().unwrap_or(configuration);
            command.args(["mec", "agent", "run", "-c"]).arg(own)
        };
        Ok(command.stdout(log.try_clone()?).stderr(log).namespace(namespace))
    }

    fn start_all(&self, host: &Host) -> Result<(), DriverError> {
        std::fs::create_dir_all(&self.run_dir).map_err(|error| failed(&self.run_dir, &error))?;
        let config::Driver::Namespace(name) = &host.driver else { return Ok(()) };
        let path = Path::new("/run/netns").join(name);
        let namespace = NetNs::from_path(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DriverError::System {
                what: path.display().to_string(),
                error: format!("there is no such namespace: make it (`ip netns add {name}`), or correct the key `driver` of {}", host.name),
            },
            _ => failed(&path, &error),
        })?;
        for part in PARTS {
            let lock = self.lock(host, part);
            let started = match process::holder(&lock) {
                Ok(Some(_)) => continue,
                Ok(None) => self.command(host, part, &namespace).and_then(|command| command.detach(&lock)),
                Err(error) => Err(error),
            };
            match started {
                Ok(id) => tracing::info!(host = host.name, part, id, "started"),
                // Another start of the same was faster.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound && !self.program.exists() => {
                    let what = format!("{part} of {}: {}", host.name, self.program.display());
                    let error = "there is no such program any more: put it back, or start the orchestrator from where it is now";
                    return Err(DriverError::System { what, error: error.to_owned() });
                }
                Err(error) => {
                    let what = format!("{} of {}: {}", part, host.name, self.program.display());
                    return Err(DriverError::System { what, error: error.to_string() });
                }
            }
        }
        Ok(())
    }
}

fn failed(path: &Path, error: &io::Error) -> DriverError {
    DriverError::System { what: path.display().to_string(), error: error.to_string() }
}

impl Driver for Processes {
    fn start<'a>(&'a self, host: &'a Host) -> Doing<'a, ()> {
        Box::pin(async { self.start_all(host) })
    }

    fn is_running<'a>(&'a self, host: &'a Host) -> Doing<'a, Option<bool>> {
        Box::pin(async {
            let lock = self.lock(host, ANCHOR);
            let holder = process::holder(&lock).map_err(|error| failed(&lock, &error))?;
            Ok(Some(holder.is_some()))
        })
    }

    fn stop<'a>(&'a self, host: &'a Host) -> Doing<'a, ()> {
        Box::pin(async {
            for part in PARTS.iter().rev() {
                let lock = self.lock(host, part);
                process::end_holder(&lock, GRACE).await.map_err(|error| failed(&lock, &error))?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// What is missing is named, with what to do; it does not look like something that goes away by itself.
    #[tokio::test]
    async fn what_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let host = |namespace: &str| -> Host {
            serde_json::from_value(serde_json::json!(
                {"name": "edge1", "anchor": "gw2", "agent": "10.9.0.3:8806", "configuration": "/etc/edge1.yaml", "nfs": ["upf"],
                 "driver": {"namespace": namespace}}
            ))
            .unwrap()
        };
        let driver = Processes::new(folder.path().join("gone"), folder.path().join("run"));
        for (namespace, expected) in [
            ("/proc/self/ns/net", "anchor of edge1: "),
            ("/proc/self/ns/net", "put it back"),
            ("nowhere-at-all", "ip netns add nowhere-at-all"),
        ] {
            let error = driver.start(&host(namespace)).await.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            let refused = crate::request::Refused::from(error);
            assert!(matches!(refused, crate::request::Refused::Driver(_)), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn processes_are_found_again_and_run_once() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, "#!/bin/sh\necho \"$@\"\nexec sleep 100\n").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        // That of this thread: entering it needs no privilege, but setns(2) may.
        let host: Host = serde_json::from_value(serde_json::json!(
            {"name": "edge1", "anchor": "gw2", "agent": "10.9.0.3:8806", "configuration": "/etc/edge1.yaml", "nfs": ["spgw", "upf"],
             "driver": {"namespace": "/proc/self/ns/net"}}
        ))
        .unwrap();
        let driver = || Processes::new(program.clone(), folder.path().join("run"));
        assert_eq!(driver().is_running(&host).await, Ok(Some(false)));
        if let Err(error) = driver().start(&host).await {
            assert!(error.to_string().contains("not permitted"), "{error}");
            assert!(std::env::var_os("CI").is_none(), "a process in a namespace needs root");
            eprintln!("skipped: a process in a namespace needs root");
            return;
        }
        assert_eq!(driver().is_running(&host).await, Ok(Some(true)));
        let holders = || PARTS.map(|part| process::holder(&driver().lock(&host, part)).unwrap().unwrap());
        let first = holders();
        let anchor_log = folder.path().join("run/edge1-anchor.log");
        // It has begun when it has said so.
        let begun = async |times: usize| {
            while std::fs::read_to_string(&anchor_log).unwrap().lines().count() < times {
                net::time::sleep(Duration::from_millis(10)).await;
            }
        };
        begun(1).await;
        driver().start(&host).await.unwrap();
        assert_eq!(holders(), first, "nothing is started twice");

        // The anchor ends; only it is started again.
        process::end_holder(&driver().lock(&host, ANCHOR), GRACE).await.unwrap();
        assert_eq!(driver().is_running(&host).await, Ok(Some(false)));
        driver().start(&host).await.unwrap();
        assert!(holders()[0] != first[0] && holders()[1] == first[1]);
        begun(2).await;
        driver().stop(&host).await.unwrap();
        driver().stop(&host).await.unwrap();
        assert_eq!(driver().is_running(&host).await, Ok(Some(false)));
        let log = std::fs::read_to_string(&anchor_log).unwrap();
        assert_eq!(log, "run -c /etc/edge1.yaml --nf spgw,upf\n".repeat(2));
        let log = std::fs::read_to_string(folder.path().join("run/edge1-agent.log")).unwrap();
        assert_eq!(log, "mec agent run -c /etc/edge1.yaml\n");
    }
}
