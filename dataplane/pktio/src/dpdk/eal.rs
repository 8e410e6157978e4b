//! DPDK's environment (EAL): memory, drivers and threads, started once per process.
//!
//! Devices are plugged in later, when a [port](super::port) is opened; only physical ones are named at the start.
//! Nothing is left behind in the file system: memory is anonymous, and processes that talk to each
//! other do so through memif.
//!
//! What DPDK logs goes to the log of this process, under the target `dpdk`; its last line also explains an error.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

use super::Error;

/// Where memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// Huge pages when enough of them are free, else ordinary ones.
    #[default]
    Automatic,
    /// Huge pages, or no start.
    Yes,
    /// Ordinary pages: slower, needs no preparation of the machine. Not for physical devices.
    No,
}

/// How to start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Core of DPDK's own main thread, which does nothing after the start; DPDK's thread for control connections
    /// keeps off it. Without one: the first that this process may use.
    pub core: Option<usize>,
    /// Where memory comes from.
    pub huge_pages: HugePages,
    /// The most that may be used, in megabytes: with ordinary pages taken from the system when it is used, with huge
    /// pages at once.
    pub megabytes: u32,
    /// Addresses of physical devices ("0000:01:00.0"), which are bound to vfio-pci. All others are left alone.
    pub physical: Vec<String>,
    /// Further arguments, as DPDK's manual describes them.
    pub arguments: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            core: None,
            huge_pages: HugePages::Automatic,
            megabytes: 512,
            physical: Vec::new(),
            arguments: Vec::new(),
        }
    }
}

impl Options {
    /// The arguments of `rte_eal_init`.
    fn arguments(&self, huge: bool, core: usize) -> Vec<String> {
        let mut arguments = vec!["godwit".to_owned(), "--no-shconf".to_owned(), "--no-telemetry".to_owned()];
        // memif in its zero-copy form passes memory to the peer by descriptor: one per segment would be many.
        arguments.push("--single-file-segments".to_owned());
        arguments.extend(["-m".to_owned(), self.megabytes.to_string()]);
        if huge {
            // All of it at once, and never more: a zero-copy memif shows its peer what there is when they connect.
            arguments.extend(["--in-memory".to_owned(), format!("--socket-limit={}", self.megabytes)]);
        } else {
            arguments.push("--no-huge".to_owned());
        }
        if self.physical.is_empty() {
            arguments.extend(["--no-pci".to_owned(), "--iova-mode=va".to_owned()]);
        }
        for address in &self.physical {
            arguments.extend(["-a".to_owned(), address.clone()]);
        }
        arguments.extend(["--lcores".to_owned(), format!("0@{core}")]);
        arguments.extend(["--log-level".to_owned(), "*:warning".to_owned()]);
        arguments.extend(self.arguments.iter().cloned());
        arguments
    }
}

unsafe extern "C" {
    fn godwit_eal_init(
        count: c_int,
        arguments: *mut *mut c_char,
        log: extern "C" fn(*const c_char, usize),
    ) -> c_int;
    fn godwit_huge_pages() -> c_int;
    fn godwit_thread_register() -> c_int;
    fn godwit_thread_unregister();
}

/// The last line that DPDK logged.
static LAST_LINE: Mutex<String> = Mutex::new(String::new());

extern "C" fn log(text: *const c_char, length: usize) {
    // SAFETY: DPDK hands over `length` octets, which it does not change during the call.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), length) };
    for line in String::from_utf8_lossy(text).lines().map(str::trim).filter(|line| !line.is_empty()) {
        tracing::info!(target: "dpdk", "{line}");
        line.clone_into(&mut LAST_LINE.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Forgets what DPDK logged, to know later what it logged about the next call.
pub(super) fn clear_log() {
    LAST_LINE.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// An error of a call, with what DPDK logged during it.
pub(super) fn explained(what: &str, code: c_int) -> Error {
    let mut error = Error::from_code(what, code);
    let line = LAST_LINE.lock().unwrap_or_else(PoisonError::into_inner);
    if !line.is_empty() {
        error.reason = format!("{} ({line})", error.reason);
    }
    error
}

/// Descriptors that this process is not expected to have at once.
const HIGH_DESCRIPTOR: u64 = 8192;

static STARTED: OnceLock<Result<(), Error>> = OnceLock::new();

/// Starts DPDK in this process. The first call decides how; later ones return what it did.
///
/// # Errors
/// DPDK cannot start here: no memory, no such core, an unknown argument. It is not tried again.
pub fn start_with(options: &Options) -> Result<(), Error> {
    STARTED.get_or_init(|| initialise(options)).clone()
}

/// Starts DPDK for its classifier alone: on a core, without huge pages.
///
/// # Errors
/// As [`start_with`].
pub fn start(core: usize) -> Result<(), Error> {
    start_with(&Options {
        core: Some(core),
        huge_pages: HugePages::No,
        megabytes: 2048,
        // The default is 256; the processor decides whether there are 512.
        arguments: vec!["--force-max-simd-bitwidth=512".to_owned()],
        ..Options::default()
    })
}

/// Whether memory is in huge pages; `None` before the start.
pub fn uses_huge_pages() -> Option<bool> {
    STARTED.get()?.as_ref().ok()?;
    // SAFETY: it reads a setting, which the start has made.
    Some(unsafe { godwit_huge_pages() } != 0)
}

fn initialise(options: &Options) -> Result<(), Error> {
    let huge = match options.huge_pages {
        HugePages::Yes => true,
        HugePages::No => false,
        HugePages::Automatic => free_huge_megabytes() >= u64::from(options.megabytes),
    };
    let core = options.core.or_else(first_core).unwrap_or(0);
    let mut arguments = Vec::new();
    for argument in options.arguments(huge, core) {
        let argument =
            CString::new(argument).map_err(|_| Error::new("start", "an argument contains a zero"))?;
        // DPDK keeps pointers to the arguments.
        arguments.push(argument.into_raw());
    }
    let count = arguments.len() as c_int;
    arguments.push(std::ptr::null_mut());
    let arguments = arguments.leak().as_mut_ptr() as usize;
    clear_log();
    let low = low_descriptors();
    // DPDK keeps the thread that starts it on one core for ever: not one of ours.
    let starter = std::thread::Builder::new().name("dpdk-start".to_owned()).spawn(move || {
        // SAFETY: as many strings as `count` says, then null, all of which live for ever; called once, as it demands.
        unsafe { godwit_eal_init(count, arguments as *mut *mut c_char, log) }
    });
    let ended = starter.map(std::thread::JoinHandle::join);
    drop(low);
    match ended {
        Ok(Ok(code)) if code < 0 => Err(explained("start", code)),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(_)) => Err(Error::new("start", "the thread that starts DPDK has died")),
        Err(error) => Err(Error::new("start", &error.to_string())),
    }
}

/// Takes the low numbers of descriptors, so that those of DPDK are high, and nobody gets one of their numbers should a
/// driver close what is not its own: memif does (`godwit_memory_keep`), and again for each device.
fn low_descriptors() -> Vec<File> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it writes the structure, and nothing if it fails: then no number is low.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    let below = (limit.rlim_cur / 4 * 3).min(HIGH_DESCRIPTOR);
    let mut held = Vec::new();
    let mut next = File::open("/dev/null");
    while let Ok(file) = next {
        if file.as_raw_fd() as u64 >= below {
            break;
        }
        next = file.try_clone();
        held.push(file);
    }
    held
}

/// Megabytes in free huge pages of 2 MB.
pub fn free_huge_megabytes() -> u64 {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    free.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0) * 2
}

fn first_core() -> Option<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
    (0..CpuSet::count()).find(|&core| allowed.is_set(core).unwrap_or(false))
}

/// A thread's number in DPDK, given back when the thread ends.
struct Registration {
    done: Cell<bool>,
    held: Cell<bool>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.held.get() {
            // SAFETY: this thread was registered and calls DPDK no more with its number.
            unsafe { godwit_thread_unregister() }
        }
    }
}

thread_local! {
    static REGISTRATION: Registration =
        const { Registration { done: Cell::new(false), held: Cell::new(false) } };
}

/// Makes DPDK know the calling thread, so that it has a cache of buffers. Without a number (DPDK has 128), or in a
/// thread that is ending, all works as well, slower.
#[inline]
pub(super) fn register_thread() {
    // The only error is that the thread is ending.
    let _ = REGISTRATION.try_with(|registration| {
        if !registration.done.get() {
            registration.done.set(true);
            // SAFETY: a function for any thread, at any time after the start.
            registration.held.set(unsafe { godwit_thread_register() } == 0);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_say_where_memory_comes_from_and_what_to_touch() {
        let options = Options { physical: vec!["0000:01:00.0".to_owned()], ..Options::default() };
        let huge = options.arguments(true, 3).join(" ");
        assert!(
            huge.contains("-m 512 --in-memory --socket-limit=512 -a 0000:01:00.0 --lcores 0@3"),
            "{huge}"
        );
        assert!(!huge.contains("--no-pci") && !huge.contains("--no-huge"), "{huge}");
        let ordinary = Options::default().arguments(false, 0).join(" ");
        assert!(ordinary.contains("-m 512 --no-huge --no-pci"), "{ordinary}");
    }
}
