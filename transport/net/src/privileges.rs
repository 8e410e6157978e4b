//! Giving up privileges that a running core does not need.
//!
//! Capabilities belong to threads: a thread that gives one up does not affect the other threads. So
//! [`keep_only`] is called while the process has a single thread, and later threads inherit what is
//! left. The caller keeps the capabilities for work that is repeated later (recreating a deleted TUN
//! device, attaching an XDP program to an interface that came back).
//!
//! Invariant: processes started afterwards do not get more capabilities than this one has
//! (`no_new_privs`, and the bounding set).

use std::io;

use crate::capability::Capability;

/// Why privileges could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// The process has other threads, which would keep their capabilities.
    #[error("privileges can only be given up while the process has one thread; it has {0}")]
    Threads(usize),
    /// The system refused.
    #[error("cannot give up privileges ({step}): {error}")]
    System {
        /// The name of the system call.
        step: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits, in two halves.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// Changes the bounding set.
const CAP_SETPCAP: u8 = 8;
/// Greater than any kernel's last capability (sets have 64 bits).
const CAPABILITIES: u8 = 64;

/// Header of capset(2): version, and 0 for the calling thread.
#[repr(C)]
struct Header {
    version: u32,
    thread: i32,
}

/// One half of the three sets.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Keeps those of these capabilities that the process has, and gives up all others, for this process
/// and the processes it starts. Those get the kept capabilities even if this process does not run as
/// root (`nft` needs CAP_NET_ADMIN).
///
/// # Errors
/// The process has other threads, or the system refuses, which is not expected.
pub fn keep_only(kept: &[Capability]) -> Result<(), PrivilegeError> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    if threads != 1 {
        return Err(PrivilegeError::Threads(threads));
    }
    let kept: u64 = kept.iter().map(|capability| 1 << *capability as u8).fold(0, |set, bit| set | bit);
    prctl("no_new_privs", libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;

    let (mut header, mut halves) =
        (Header { version: CAPABILITY_VERSION_3, thread: 0 }, [Half::default(); 2]);
    // SAFETY: with this version capget(2) writes two `Half`s and the version; both pointers are exclusive.
    let status = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) };
    check("capget", status)?;
    let permitted = u64::from(halves[0].permitted) | u64::from(halves[1].permitted) << 32;
    let effective = u64::from(halves[0].effective) | u64::from(halves[1].effective) << 32;

    // The bounding set first, which needs CAP_SETPCAP. Without CAP_SETPCAP nothing has to be bounded: a
    // process without capabilities and with `no_new_privs` cannot get any.
    if effective & (1 << CAP_SETPCAP) != 0 {
        for capability in (0..CAPABILITIES).filter(|capability| kept & (1 << capability) == 0) {
            match prctl("bounding set", libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0) {
                // This kernel does not know the capability.
                Err(PrivilegeError::System { error, .. }) if error.raw_os_error() == Some(libc::EINVAL) => {
                    break;
                }
                dropped => dropped?,
            }
        }
    }
    let left = permitted & kept;
    for (index, half) in halves.iter_mut().enumerate() {
        let bits = (left >> (32 * index)) as u32;
        *half = Half { effective: bits, permitted: bits, inheritable: bits };
    }
    // SAFETY: capset(2) reads the header and two `Half`s.
    let status = unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) };
    check("capset", status)?;

    let ambient = |what: libc::c_int, capability: u8| {
        prctl("ambient set", libc::PR_CAP_AMBIENT, what as libc::c_ulong, capability.into())
    };
    ambient(libc::PR_CAP_AMBIENT_CLEAR_ALL, 0)?;
    for capability in (0..CAPABILITIES).filter(|capability| left & (1 << capability) != 0) {
        // A service manager may forbid it (by a secure bit): then programs started here have no
        // capabilities.
        let _ = ambient(libc::PR_CAP_AMBIENT_RAISE, capability);
    }
    Ok(())
}

fn prctl(
    step: &'static str,
    option: libc::c_int,
    first: libc::c_ulong,
    second: libc::c_ulong,
) -> Result<(), PrivilegeError> {
    // SAFETY: the options used here take integers only.
    check(step, unsafe { libc::prctl(option, first, second, 0, 0) }.into())
}

fn check(step: &'static str, status: libc::c_long) -> Result<(), PrivilegeError> {
    if status < 0 {
        return Err(PrivilegeError::System { step, error: io::Error::last_os_error() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest needs a process with one thread: `tests/e2e/privileges.rs` examines a running core.
    #[test]
    fn with_other_threads_nothing_is_given_up() {
        std::thread::scope(|scope| {
            let (stop, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || wait.recv());
            let held = Capability::NetRaw.held();
            assert!(matches!(keep_only(&[]), Err(PrivilegeError::Threads(2..))));
            assert_eq!(Capability::NetRaw.held(), held);
            drop(stop);
        });
    }
}
