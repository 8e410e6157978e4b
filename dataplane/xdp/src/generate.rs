//! A generator of GTP-U packets that the kernel makes and sends itself (`bpf/generate.bpf.c`).
//!
//! The packets leave through an interface as if its programs had sent them. They are as long as their headers, and have an outer
//! UDP checksum of 0, as their TEIDs vary.

use std::sync::atomic::Ordering::Relaxed;

use pktio::bpf::{Link, Program, SharedWords, TestFrame};

use crate::object::{ObjectError, Value};
use crate::programs;
use crate::steer::Varied;

/// Octets of a frame.
pub const FRAME: usize = 96;

/// A generator of one kind of packets.
#[derive(Debug)]
pub struct Generator {
    program: Program,
    frame: [u8; FRAME],
    _template: SharedWords,
}

impl Generator {
    /// A generator of this frame: Ethernet, outer IPv4, UDP without checksum, GTP-U.
    ///
    /// # Errors
    /// This build has no programs, or the kernel refuses the program.
    pub fn new(frame: [u8; FRAME], teids: &Varied<'_>) -> Result<Generator, ObjectError> {
        use std::os::fd::AsFd;
        let template = SharedWords::new(FRAME)?;
        for (word, octets) in template.words().iter().zip(frame.chunks_exact(8)) {
            word.store(u64::from_le_bytes(octets.try_into().expect("chunks of eight")), Relaxed);
        }
        let values = [
            ("template", Value::Memory(template.as_fd())),
            ("sequence", Value::Memory(teids.sequence.as_fd())),
            ("first_teid", Value::Number(teids.first.into())),
            ("teid_mask", Value::Number(teids.mask.into())),
        ];
        let program = programs::generate()?.load("godwit_generate", &values)?;
        Ok(Generator { program, frame, _template: template })
    }

    /// Attaches the program to an interface that receives nothing, until the link is dropped. The kernel then has it ready for
    /// [`Generator::send`]; otherwise each call waits twice until all running programs have ended, some 20 ms.
    ///
    /// # Errors
    /// The interface has another program, or no driver that takes one.
    pub fn hold_ready(&self, interface: u32) -> Result<Link, ObjectError> {
        Ok(self.program.attach(interface)?)
    }

    /// Sends `count` packets out through an interface of the calling thread's network namespace. An XDP program has to be attached
    /// to it, and to its peer if it is a veth.
    ///
    /// # Errors
    /// The interface cannot send for XDP.
    pub fn send(&self, interface: u32, count: u32, batch: u32) -> Result<(), ObjectError> {
        let frame = TestFrame { octets: &self.frame, interface };
        Ok(self.program.run_live(frame, count, batch)?)
    }
}
