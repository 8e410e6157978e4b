//! What programs take of processors, as the kernel counts it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use super::{Attributes, BpfError, OBJ_GET_INFO_BY_FD, PROG_INFO};

// Commands of bpf(2), and the kind of statistics (linux/bpf.h).
const PROG_GET_NEXT_ID: libc::c_long = 11;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const ENABLE_STATS: libc::c_long = 32;
const STATS_RUN_TIME: u32 = 0;
// Where things are in `struct bpf_prog_info`.
const INFO_NAME: usize = 64;
const INFO_RUN_TIME: usize = 192;
const INFO_RUNS: usize = 200;

/// Lets the kernel count, for all programs, until it is dropped. Two readings of the clock are added to each run.
#[derive(Debug)]
pub struct Statistics(#[allow(dead_code, reason = "the kernel counts while it is open")] OwnedFd);

impl Statistics {
    /// Begins.
    ///
    /// # Errors
    /// No privilege: CAP_SYS_ADMIN.
    pub fn enable() -> Result<Statistics, BpfError> {
        let mut attributes = Attributes::new().u32(0, STATS_RUN_TIME);
        // SAFETY: the command follows no pointer.
        unsafe { attributes.open(ENABLE_STATS) }.map(Statistics).map_err(BpfError::Run)
    }
}

/// A program that the kernel has, of this process or another one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Id(u32);

/// What is known of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// Its name, up to 15 octets.
    pub name: String,
    /// How long it has run while [`Statistics`] were enabled, with the programs that it went on to.
    pub run_time: Duration,
    /// How often.
    pub runs: u64,
}

impl Id {
    /// Of all programs that are loaded.
    ///
    /// # Errors
    /// No privilege: CAP_SYS_ADMIN.
    pub fn all() -> Result<Vec<Id>, BpfError> {
        let (mut ids, mut last) = (Vec::new(), 0);
        loop {
            let mut attributes = Attributes::new().u32(0, last);
            // SAFETY: the command follows no pointer.
            match unsafe { attributes.call(PROG_GET_NEXT_ID) } {
                Ok(_) => last = attributes.get_u32(4),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(ids),
                Err(error) => return Err(BpfError::Run(error)),
            }
            ids.push(Id(last));
        }
    }

    /// Asks the kernel; `None` if the program is gone.
    ///
    /// # Errors
    /// No privilege.
    pub fn info(self) -> Result<Option<Info>, BpfError> {
        let mut attributes = Attributes::new().u32(0, self.0);
        // SAFETY: the command follows no pointer.
        let program = match unsafe { attributes.open(PROG_GET_FD_BY_ID) } {
            Ok(program) => program,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(BpfError::Run(error)),
        };
        let mut info = [0u8; PROG_INFO];
        let mut attributes = Attributes::new()
            .u32(0, program.as_raw_fd() as u32)
            .u32(4, PROG_INFO as u32)
            .pointer(8, info.as_mut_ptr());
        // SAFETY: the kernel writes at most the octets given, which outlive the call. Lengths of lists in them are
        // zero, so it follows no pointer there.
        unsafe { attributes.call(OBJ_GET_INFO_BY_FD) }.map_err(BpfError::Run)?;
        let number = |at: usize| {
            let mut octets = [0; 8];
            octets.copy_from_slice(&info[at..at + 8]);
            u64::from_ne_bytes(octets)
        };
        let name = info[INFO_NAME..INFO_NAME + 16].split(|octet| *octet == 0).next().unwrap_or_default();
        Ok(Some(Info {
            name: String::from_utf8_lossy(name).into_owned(),
            run_time: Duration::from_nanos(number(INFO_RUN_TIME)),
            runs: number(INFO_RUNS),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::bpf::asm::{Assembler, Reg};
    use crate::bpf::{Program, XDP_DROP};

    #[test]
    fn runs_of_a_program_are_counted_while_that_is_enabled() {
        let before: HashSet<Id> = Id::all().unwrap().into_iter().collect();
        let mut asm = Assembler::new();
        asm.set(Reg::R0, XDP_DROP);
        asm.exit();
        let program = Program::load("test_counted", &asm.finish().unwrap()).unwrap();
        let new = Id::all().unwrap().into_iter().filter(|id| !before.contains(id));
        let named: Vec<Id> =
            new.filter(|id| id.info().unwrap().is_some_and(|info| info.name == "test_counted")).collect();
        let [id] = named[..] else { panic!("{named:?}") };
        program.run_repeatedly(&[0; 64], 10).unwrap();
        let counting = Statistics::enable().unwrap();
        program.run_repeatedly(&[0; 64], 1000).unwrap();
        let info = id.info().unwrap().unwrap();
        // Of the ten before nothing is known, unless another process has enabled it.
        assert!((1000..=1010).contains(&info.runs), "{info:?}");
        assert!(info.run_time > Duration::ZERO, "{info:?}");
        drop((counting, program));
        assert_eq!(id.info().unwrap(), None);
    }
}
