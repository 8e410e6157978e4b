//! The XDP programs of an interface: a chain of parts, of which each takes packets or passes them on.
//!
//! ```text
//! interface ─► entry ─► part at place 1 ─► part at place 3 ─► AF_XDP's selection (the last place)
//!                │            │                  │                  │
//!                └────────────┴──────────────────┴──────────────────┴─► the kernel, where no part follows
//! ```
//! The [`Chain`] owns the attachment to the interface; a [`Part`] is a program at one of its places. A part that does
//! not take a packet goes on with the next slot of an array of programs (`bpf_tail_call`): slot *n* has the first part
//! at place *n* or behind. So a packet makes one step per part, and none for an empty place. When a part is added,
//! replaced or removed, each slot is changed at once, the last one first: a packet sees the old chain or the new one,
//! and no part twice. See ADR 0019.
//!
//! A program in C is loaded elsewhere and added like any other. It passes packets on with
//! `bpf_tail_call(ctx, &slots, place + 1)`, where `slots` is [`Chain::slots`], and returns `XDP_PASS` behind that.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::bpf::asm::{AsmError, Assembler, Reg};
use crate::bpf::{BpfError, Link, Program, ProgramArray, Run, XDP_PASS};

/// Number of places of a chain.
const PLACES: usize = 8;
/// `bpf_tail_call`.
const HELPER_TAIL_CALL: i32 = 12;

/// Where a part is in the chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place(u32);

impl Place {
    /// The last place: AF_XDP's selection, behind all parts that handle packets themselves.
    pub const SELECTION: Place = Place(PLACES as u32 - 1);

    /// Entries that send packets on without the workers (`xdp::steer`): with room in front, and in front of the selection.
    pub const STEERING: Place = Place(4);

    /// The place with this number, from 0 on; `None` when there are fewer places.
    pub const fn new(number: u32) -> Option<Place> {
        if number < PLACES as u32 { Some(Place(number)) } else { None }
    }

    /// The number.
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// Why a part cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// There is a part at this place, which may be replaced by its owner.
    #[error("the XDP chain already has a part at place {}", .0.0)]
    Occupied(Place),
    /// What the kernel did not do.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// The parts by their places.
type Parts = [Option<Arc<Program>>; PLACES];

/// The XDP programs of one interface. They are detached when the chain and all its parts are dropped, or the process
/// ends, however it ends.
#[derive(Debug)]
pub struct Chain {
    // First, so that the interface is free before the array is emptied.
    link: Link,
    entry: Program,
    slots: ProgramArray,
    parts: Mutex<Parts>,
}

impl Chain {
    /// Attaches a chain without parts to the interface with this number: all packets go to the kernel.
    ///
    /// # Errors
    /// The interface has another XDP program, or there is no privilege.
    pub fn attach(interface: u32) -> Result<Arc<Chain>, BpfError> {
        let slots = ProgramArray::new(PLACES as u32)?;
        let entry = Program::load("godwit_entry", &entry(slots.as_fd())?)?;
        let link = entry.attach(interface)?;
        Ok(Arc::new(Chain { link, entry, slots, parts: Mutex::default() }))
    }

    /// Whether the programs run in the interface's driver.
    pub fn native(&self) -> bool {
        self.link.native()
    }

    /// Adds a part at a place that has none.
    ///
    /// # Errors
    /// The place is occupied, or the kernel refuses the program; the chain is as before.
    pub fn add(self: &Arc<Chain>, place: Place, program: Program) -> Result<Part, ChainError> {
        let mut parts = self.parts();
        if parts[place.0 as usize].is_some() {
            return Err(ChainError::Occupied(place));
        }
        self.put(&mut parts, place, Some(Arc::new(program)))?;
        Ok(Part { chain: Arc::clone(self), place })
    }

    /// The array through which a part at place *n* passes packets on: slot *n* + 1.
    pub fn slots(&self) -> BorrowedFd<'_> {
        self.slots.as_fd()
    }

    /// Assembles the end of a part at `place`: passes the packet on. `context` has the program's argument; R0 to R5 are
    /// lost.
    pub fn pass_on(&self, asm: &mut Assembler, place: Place, context: Reg) {
        go_to(asm, self.slots.as_fd(), place.0 + 1, context);
    }

    /// Runs the chain `repeat` times on a frame, without the interface.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<Run, BpfError> {
        self.entry.run_repeatedly(frame, repeat)
    }

    /// Instructions that the verifier looked at in the program in front of all parts.
    pub fn entry_instructions(&self) -> Result<u32, BpfError> {
        self.entry.verified_instructions()
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // Under the lock nothing panics.
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a place. After an error the chain is as before.
    fn put(&self, parts: &mut Parts, place: Place, part: Option<Arc<Program>>) -> Result<(), BpfError> {
        let place = place.0 as usize;
        let before = std::mem::replace(&mut parts[place], part);
        let result = self.fill(parts, place);
        if result.is_err() {
            parts[place] = before;
            // Slots that could not be changed have the former program already.
            let _ = self.fill(parts, place);
        }
        result
    }

    /// Fills the slots that lead to `place`: its own, and those of the empty places in front of it.
    fn fill(&self, parts: &Parts, place: usize) -> Result<(), BpfError> {
        let following = parts[place..].iter().flatten().next();
        let occupied = parts[..place].iter().rposition(Option::is_some);
        for slot in (occupied.map_or(0, |at| at + 1)..=place).rev() {
            match following {
                Some(program) => self.slots.set(slot as u32, program.as_fd())?,
                None => self.slots.remove(slot as u32)?,
            }
        }
        Ok(())
    }
}

/// A program at a place of a chain; dropping it removes the program.
#[derive(Debug)]
pub struct Part {
    chain: Arc<Chain>,
    place: Place,
}

impl Part {
    /// Replaces the program: each packet passes either the former one or this one. Packets in the former one may still
    /// use its maps for a moment.
    ///
    /// # Errors
    /// The kernel refuses the program; the former one stays.
    pub fn replace(&self, program: Program) -> Result<(), BpfError> {
        self.chain.put(&mut self.chain.parts(), self.place, Some(Arc::new(program)))
    }

    /// The chain.
    pub fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if let Err(error) = self.chain.put(&mut self.chain.parts(), self.place, None) {
            tracing::error!(%error, place = self.place.0, "an XDP program stays until its interface is released");
        }
    }
}

/// The program that the interface runs.
fn entry(slots: BorrowedFd<'_>) -> Result<Vec<u64>, AsmError> {
    let mut asm = Assembler::new();
    asm.copy(Reg::R6, Reg::R1);
    go_to(&mut asm, slots, 0, Reg::R6);
    asm.finish()
}

/// Goes on with a slot, or gives the packet to the kernel when there is nothing.
fn go_to(asm: &mut Assembler, slots: BorrowedFd<'_>, slot: u32, context: Reg) {
    if slot < PLACES as u32 {
        asm.copy(Reg::R1, context);
        asm.load_map(Reg::R2, slots);
        asm.set(Reg::R3, slot as i32);
        asm.call(HELPER_TAIL_CALL);
    }
    // The kernel comes here when the slot is empty.
    asm.set(Reg::R0, XDP_PASS);
    asm.exit();
}
