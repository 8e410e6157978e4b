//! Capabilities of this process and of this kernel, for `godwit doctor` and for choosing a transport of
//! SCTP.

use std::io;
use std::path::Path;

/// A Linux capability Godwit uses, with its bit number (`linux/capability.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Access to files regardless of owner and mode.
    DacOverride = 1,
    /// Ports below 1024.
    NetBindService = 10,
    /// Interfaces, addresses, routes, TUN devices, nftables.
    NetAdmin = 12,
    /// Raw and packet sockets: SCTP in user space, captures.
    NetRaw = 13,
    /// Locked memory beyond the limit: packet memory of AF_XDP and DPDK.
    IpcLock = 14,
    /// Direct access to devices: network cards that DPDK drives.
    SysRawio = 17,
    /// Namespaces.
    SysAdmin = 21,
    /// Real-time priority for threads.
    SysNice = 23,
    /// Programs in C in XDP, whose pointers the kernel follows with this capability only (Linux 5.8).
    Perfmon = 38,
    /// eBPF programs and maps (Linux 5.8).
    Bpf = 39,
}

impl Capability {
    /// Its name in capabilities(7).
    pub fn name(self) -> &'static str {
        match self {
            Capability::DacOverride => "CAP_DAC_OVERRIDE",
            Capability::NetBindService => "CAP_NET_BIND_SERVICE",
            Capability::NetAdmin => "CAP_NET_ADMIN",
            Capability::NetRaw => "CAP_NET_RAW",
            Capability::IpcLock => "CAP_IPC_LOCK",
            Capability::SysRawio => "CAP_SYS_RAWIO",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysNice => "CAP_SYS_NICE",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
        }
    }

    /// Whether the calling thread has it in its effective set, in its own user namespace.
    pub fn held(self) -> bool {
        effective().is_some_and(|set| set & (1 << self as u8) != 0)
    }
}

/// The effective capability set of the calling thread.
fn effective() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Whether the kernel has SCTP sockets.
pub fn kernel_sctp() -> bool {
    probe(libc::SOCK_STREAM, libc::IPPROTO_SCTP).is_ok()
}

/// Whether a raw SCTP socket can be opened (CAP_NET_RAW in the namespace's user namespace).
pub fn raw_sctp() -> bool {
    probe(libc::SOCK_RAW, libc::IPPROTO_SCTP).is_ok()
}

/// Whether TUN devices can be created: the control device exists and may be opened.
pub fn tun_device() -> io::Result<()> {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").map(|_| ())
}

/// Whether an ordinary user may create user namespaces here, judged by system settings.
///
/// # Errors
/// Names the setting that forbids it.
pub fn user_namespaces() -> Result<(), String> {
    let zero = |path: &str| std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "0");
    if !Path::new("/proc/self/ns/user").exists() {
        return Err("this kernel has no user namespaces".to_owned());
    }
    for setting in ["/proc/sys/user/max_user_namespaces", "/proc/sys/kernel/unprivileged_userns_clone"] {
        if zero(setting) {
            return Err(format!("{setting} is 0"));
        }
    }
    if std::fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
        .is_ok_and(|value| value.trim() == "1")
    {
        return Err("/proc/sys/kernel/apparmor_restrict_unprivileged_userns is 1".to_owned());
    }
    Ok(())
}

/// The path of a program in `PATH`, or in the `sbin` folders that ordinary users' `PATH` often lacks.
pub fn program(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(std::path::PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Opens and closes a socket of this type.
fn probe(kind: libc::c_int, protocol: libc::c_int) -> io::Result<()> {
    // SAFETY: socket(2) takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, kind | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was opened just above and is closed exactly once.
    unsafe { libc::close(fd) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_capabilities_match_what_works() {
        assert_eq!(Capability::NetRaw.held(), raw_sctp());
        if nix::unistd::geteuid().is_root() && Capability::SysAdmin.held() {
            assert!(crate::netns::NetNs::new().is_ok());
        }
        assert!(program("sh").is_some());
        assert!(program("no-such-program-anywhere").is_none());
    }
}
