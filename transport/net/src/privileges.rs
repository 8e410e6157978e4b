//! Giving up privileges that a running core does not need.
//!
//! Capabilities belong to threads: a thread that gives one up leaves it to the others. So [`keep_only`] is called while
//! the process has a single thread, and every later one inherits what is left. What must be done again later (a TUN
//! device that was deleted, an XDP program on an interface that came back) is covered by what the caller keeps.
//!
//! Invariant: nothing this process starts afterwards has more than it has (`no_new_privs`, and the bounding set).

use std::io;

use crate::capability::Capability;

/// Why privileges could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Other threads would keep theirs.
    #[error("privileges can only be given up while the process has one thread; it has {0}")]
    Threads(usize),
    /// The system refused.
    #[error("cannot give up privileges ({step}): {error}")]
    System {
        /// Which system call.
        step: &'static str,
        /// What the system said.
        error: io::Error,
    },
}

/// `_LINUX_CAPABILITY_VERSION_3`: sets of 64 bits, in two halves.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// Changes the bounding set.
const CAP_SETPCAP: u8 = 8;
/// Beyond the last capability of any kernel (sets have 64 bits).
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

/// Keeps these capabilities, of those the process has, and gives up all others, for this process and whatever it
/// starts. Programs it starts get the kept ones also when it does not run as root (`nft` needs CAP_NET_ADMIN).
///
/// # Errors
/// The process has other threads already, or the system refuses; none are expected.
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

    // First the bounding set, for which CAP_SETPCAP is needed. Without it there is nothing to bound: who has no
    // capability and `no_new_privs` cannot get one.
    if effective & (1 << CAP_SETPCAP) != 0 {
        for capability in (0..CAPABILITIES).filter(|capability| kept & (1 << capability) == 0) {
            match prctl("bounding set", libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0) {
                // Beyond what this kernel knows.
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
        // A supervisor may forbid it (a secure bit): then programs started here have no capability.
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

    /// The rest needs a process of one thread: `tests/e2e/privileges.rs` looks at a running core.
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
