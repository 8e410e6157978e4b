//! Kernel settings of a network namespace, as files under `/proc/sys/net`.
//!
//! The files show the settings of the namespace of the thread that opens them; [`set_in`] uses a thread
//! in another namespace.

use std::io;
use std::path::PathBuf;

use crate::netns::NetNs;

/// Reads a setting of the calling thread's namespace: `get("net.ipv4.ip_forward")`.
///
/// # Errors
/// Those of reading the file, for example no such setting.
pub fn get(name: &str) -> io::Result<String> {
    std::fs::read_to_string(path(name))
        .map(|value| value.trim().to_owned())
        .map_err(|error| name_it(name, &error))
}

/// Writes a setting of the calling thread's namespace.
///
/// # Errors
/// Those of writing the file, for example no such setting, no permission, read-only `/proc/sys`
/// (containers).
pub fn set(name: &str, value: &str) -> io::Result<()> {
    if get(name).is_ok_and(|current| current == value) {
        // If /proc/sys is read-only, setting the present value again must not fail.
        return Ok(());
    }
    std::fs::write(path(name), value).map_err(|error| name_it(name, &error))
}

/// Writes a setting of another namespace.
///
/// # Errors
/// As [`set`], and those of [`NetNs::enter`].
pub fn set_in(namespace: &NetNs, name: &str, value: &str) -> io::Result<()> {
    namespace.enter(|| set(name, value))?
}

/// Enables forwarding between the interfaces of the calling thread's namespace, for both families.
///
/// # Errors
/// As [`set`].
pub fn enable_forwarding() -> io::Result<()> {
    set("net.ipv4.ip_forward", "1")?;
    if PathBuf::from("/proc/sys/net/ipv6").exists() {
        set("net.ipv6.conf.all.forwarding", "1")?;
    }
    Ok(())
}

/// `net.ipv4.conf.eth0/1.mtu`: dots separate, a slash is a dot inside a name, as in sysctl(8).
fn path(name: &str) -> PathBuf {
    let swapped: String = name
        .chars()
        .map(|character| match character {
            '.' => '/',
            '/' => '.',
            other => other,
        })
        .collect();
    PathBuf::from("/proc/sys").join(swapped)
}

fn name_it(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("sysctl {name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_belong_to_the_namespace() {
        let Some(namespace) = NetNs::for_test() else { return };
        set_in(&namespace, "net.ipv4.ip_forward", "1").unwrap();
        assert_eq!(namespace.enter(|| get("net.ipv4.ip_forward").unwrap()).unwrap(), "1");
        let other = NetNs::new().unwrap();
        assert_eq!(other.enter(|| get("net.ipv4.ip_forward").unwrap()).unwrap(), "0");
        other.enter(enable_forwarding).unwrap().unwrap();
        assert_eq!(other.enter(|| get("net.ipv6.conf.all.forwarding").unwrap()).unwrap(), "1");
        let error = set_in(&namespace, "net.no_such.thing", "1").unwrap_err();
        assert!(error.to_string().contains("net.no_such.thing"), "{error}");
    }
}
