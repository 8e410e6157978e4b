//! Running a program without an interface's traffic (`BPF_PROG_TEST_RUN`): for tests, for measuring, and as a generator of load.

use std::os::fd::AsRawFd;

use super::{Attributes, BpfError, Program};

/// The command of bpf(2).
const PROG_TEST_RUN: libc::c_long = 10;
/// Verdicts are carried out: the frames go where the program sends them.
const F_LIVE_FRAMES: u32 = 1 << 1;
/// Octets that a program may add to a frame.
const GROWTH: usize = 256;
/// Octets of `struct xdp_md`, and where lengths and the interface are there.
const CONTEXT: usize = 24;
const CONTEXT_DATA_END: usize = 4;
const CONTEXT_INTERFACE: usize = 12;

/// The result of running a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Its last verdict.
    pub verdict: i32,
    /// Nanoseconds that it took on average.
    pub ns: u32,
}

/// A frame on its way into a program.
#[derive(Debug, Clone, Copy)]
pub struct TestFrame<'a> {
    /// Its octets: at least 14, at most a page without the kernel's share.
    pub octets: &'a [u8],
    /// Index of the interface that it seems to come from, in the network namespace of the calling thread. 0: the loopback interface.
    pub interface: u32,
}

/// What a program has made of a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turn {
    /// Its verdict.
    pub verdict: i32,
    /// The frame behind it.
    pub frame: Vec<u8>,
}

impl Program {
    /// Runs the program once on a frame and returns its verdict.
    pub fn run(&self, frame: &[u8]) -> Result<i32, BpfError> {
        self.run_repeatedly(frame, 1).map(|run| run.verdict)
    }

    /// Runs the program `repeat` times on a frame. Changes that it makes to the frame stay.
    pub fn run_repeatedly(&self, frame: &[u8], repeat: u32) -> Result<Run, BpfError> {
        let mut attributes = self.attributes(frame).u32(32, repeat);
        // SAFETY: the frame outlives the call and has the length given; no output is asked for.
        unsafe { attributes.call(PROG_TEST_RUN) }.map_err(BpfError::Run)?;
        Ok(Run { verdict: attributes.get_u32(4) as i32, ns: attributes.get_u32(36) })
    }

    /// Runs the program once on a frame and returns what becomes of it.
    ///
    /// # Errors
    /// The frame's length is not possible, or there is no such interface with a program attached.
    pub fn turn(&self, frame: TestFrame<'_>) -> Result<Turn, BpfError> {
        let mut output = vec![0u8; frame.octets.len() + GROWTH];
        let context = context(frame);
        let mut attributes = self
            .attributes(frame.octets)
            .u32(12, output.len() as u32)
            .pointer(24, output.as_mut_ptr())
            .u32(32, 1);
        if frame.interface != 0 {
            attributes = attributes.u32(40, CONTEXT as u32).pointer(48, context.as_ptr());
        }
        // SAFETY: frame, output and context outlive the call and have the lengths given.
        unsafe { attributes.call(PROG_TEST_RUN) }.map_err(BpfError::Run)?;
        output.truncate(attributes.get_u32(12) as usize);
        Ok(Turn { verdict: attributes.get_u32(4) as i32, frame: output })
    }

    /// Runs the program on `count` frames, in batches, as if they came from the interface, and does with each what it says. The
    /// program must write the whole header each time: the kernel uses frames again as they come back.
    ///
    /// # Errors
    /// As [`Program::turn`].
    pub fn run_live(&self, frame: TestFrame<'_>, count: u32, batch: u32) -> Result<(), BpfError> {
        let context = context(frame);
        let mut attributes = self
            .attributes(frame.octets)
            .u32(32, count)
            .u32(40, CONTEXT as u32)
            .pointer(48, context.as_ptr())
            .u32(64, F_LIVE_FRAMES)
            .u32(72, batch);
        // SAFETY: frame and context outlive the call and have the lengths given.
        unsafe { attributes.call(PROG_TEST_RUN) }.map(drop).map_err(BpfError::Run)
    }

    fn attributes(&self, frame: &[u8]) -> Attributes {
        Attributes::new()
            .u32(0, self.0.as_raw_fd() as u32)
            .u32(8, frame.len() as u32)
            .pointer(16, frame.as_ptr())
    }
}

/// The `struct xdp_md` of a frame.
fn context(frame: TestFrame<'_>) -> [u8; CONTEXT] {
    let mut context = [0; CONTEXT];
    let mut put = |at: usize, value: u32| context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(CONTEXT_DATA_END, frame.octets.len() as u32);
    put(CONTEXT_INTERFACE, frame.interface);
    context
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::XDP_TX;
    use crate::bpf::asm::{Assembler, Reg, Size};

    #[test]
    fn a_turn_returns_the_changed_frame() {
        let mut asm = Assembler::new();
        asm.load(Size::Word, Reg::R2, Reg::R1, 0);
        asm.load(Size::Word, Reg::R3, Reg::R1, 4);
        asm.copy(Reg::R4, Reg::R2);
        asm.add(Reg::R4, 14);
        let short = asm.label();
        asm.jump_if_greater(Reg::R4, Reg::R3, short);
        asm.store_imm(Size::Half, Reg::R2, 6, 0x0101);
        asm.place(short);
        asm.set(Reg::R0, XDP_TX);
        asm.exit();
        let program = Program::load("test_turn", &asm.finish().unwrap()).unwrap();
        let mut frame: Vec<u8> = (0..100).collect();
        let turn = program.turn(TestFrame { octets: &frame, interface: 0 }).unwrap();
        frame[6..8].copy_from_slice(&[1, 1]);
        assert_eq!(turn, Turn { verdict: XDP_TX, frame });
        assert!(program.turn(TestFrame { octets: &[0; 13], interface: 0 }).is_err());
        assert!(program.turn(TestFrame { octets: &[0; 64], interface: u32::MAX >> 1 }).is_err());
    }
}
