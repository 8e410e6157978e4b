//! Checks of the sockets through which interfaces with the backend `memif` find their peers.

use std::path::Path;

use net::capability::Capability;
use pktio::interface::{Backend, Configured};
use pktio::memif::{Role, Settings};

use super::Finding;
use crate::run::{folder_of_another, of_another};

const CHECK: &str = "memif";

/// A finding for each memif of a node.
pub fn memifs(interfaces: &[Configured<'_>]) -> Vec<Finding> {
    let listening = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let memifs = interfaces.iter().filter(|interface| interface.link.backend == Backend::Memif);
    let memifs = memifs.filter_map(|interface| Some((interface.name, interface.link.memif(1).ok()?)));
    memifs.map(|(name, settings)| check(name, settings, &listening, Capability::DacOverride.held())).collect()
}

/// `listening` is `/proc/net/unix`; `may_all` says whether access rights do not matter.
fn check(name: &str, settings: Settings, listening: &str, may_all: bool) -> Finding {
    let settings = match settings.clone().read_secret() {
        Ok(settings) => settings,
        Err(error) => {
            let advice = "printf %s SECRET > FILE; chmod 0600 FILE";
            return Finding::problem(CHECK, format!("{name}: {error}"), advice);
        }
    };
    let (path, shown) = (&settings.socket, settings.socket.display());
    if settings.role == Role::Client {
        return match path.metadata() {
            Err(_) => Finding::note(
                CHECK,
                format!("{name}: no server has made {shown} yet"),
                "start it before or after the core, which tries again each second",
            ),
            Ok(found) if of_another(&found) && !may_all => Finding::problem(
                CHECK,
                format!("{name}: {shown} belongs to another user"),
                format!("let the core's user write to it: chown or chmod {shown}"),
            ),
            Ok(_) => Finding::ok(CHECK, format!("{name}: client of {shown}")),
        };
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let folder = folder.display();
        return Finding::problem(
            CHECK,
            format!("{name}: there is no folder {folder}"),
            format!("mkdir -m 0750 {folder} (RuntimeDirectory= of systemd does it at each start)"),
        );
    }
    if let Some(folder) = folder_of_another(path)
        && !may_all
    {
        let folder = folder.display();
        return Finding::problem(
            CHECK,
            format!("{name}: {folder} belongs to another user"),
            format!("let the core's user write to it: chown {folder}"),
        );
    }
    if listens(listening, path) {
        return Finding::note(
            CHECK,
            format!("{name}: a program listens at {shown}"),
            "either the core runs already, or another program does: ss -xlp",
        );
    }
    Finding::ok(CHECK, format!("{name}: server at {shown}"))
}

/// Whether a line of `/proc/net/unix` is of a socket that accepts connections (flag 0x10000) at `path`.
fn listens(sockets: &str, path: &Path) -> bool {
    sockets.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        let accepts = fields.nth(3).and_then(|flags| u32::from_str_radix(flags, 16).ok());
        accepts.is_some_and(|flags| flags & 0x1_0000 != 0) && fields.nth(3) == path.to_str()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn folders_servers_and_secrets_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let found = |role: &str, file: &str, more: &str| {
            let device = format!("m0,role={role},socket={}{more}", folder.path().join(file).display());
            let listening = std::fs::read_to_string("/proc/net/unix").unwrap();
            check("n3", Settings::parse(&device, 1, 1500).unwrap(), &listening, true)
        };
        let server = found("server", "a.sock", "");
        assert_eq!(server.verdict, Verdict::Ok, "{server:?}");
        let missing = found("server", "none/a.sock", "");
        assert!(missing.verdict == Verdict::Problem && missing.advice.starts_with("mkdir"), "{missing:?}");
        assert_eq!(found("client", "a.sock", "").verdict, Verdict::Note);
        let listener = std::os::unix::net::UnixListener::bind(folder.path().join("a.sock")).unwrap();
        let taken = found("server", "a.sock", "");
        assert!(taken.verdict == Verdict::Note && taken.advice.contains("ss -xlp"), "{taken:?}");
        assert_eq!(found("client", "a.sock", "").verdict, Verdict::Ok);
        drop(listener);
        assert_eq!(found("server", "a.sock", "").verdict, Verdict::Ok, "only a file");
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "hush").unwrap();
        let open = found("server", "a.sock", &format!(",secret-file={}", secret.display()));
        assert!(open.verdict == Verdict::Problem && open.detail.contains("chmod 0600"), "{open:?}");
        assert!(!open.detail.contains("hush"));
    }
}
