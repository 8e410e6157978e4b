//! Chooses, once at run time, which vector instructions are used.
//!
//! Vector code is written once as a [`Kernel`], generic over [`Vector`]. [`Cpu::run`] calls it inside a
//! function that is compiled for the instructions ([`crate::cpu`]), so one choice serves a whole batch.

use std::slice;

use crate::cpu::Job;
#[cfg(target_arch = "x86_64")]
use crate::cpu::{Avx2, Avx512};
use crate::key::WORDS;
use crate::{Key, Verdict};

use super::compare::Compare;
use super::portable::Portable;
use super::rows::Row;
use super::scan::Scan;

/// A set of vector instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Isa {
    /// AVX-512 F, BW, VL: 16 lanes at once.
    Avx512,
    /// AVX2: 8 lanes at once.
    Avx2,
    /// Instructions that every CPU has.
    Scalar,
}

impl Isa {
    /// All sets, the fastest first.
    pub const ALL: [Isa; 3] = [Isa::Avx512, Isa::Avx2, Isa::Scalar];

    /// Whether this CPU has these instructions.
    pub fn is_available(self) -> bool {
        Cpu::with(self).is_some()
    }
}

/// A set of instructions that this CPU is known to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cpu {
    /// See [`Isa::Avx512`].
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// See [`Isa::Avx2`].
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// See [`Isa::Scalar`].
    Scalar,
}

impl Cpu {
    /// The fastest set that this CPU has.
    pub fn detect() -> Cpu {
        Isa::ALL.into_iter().find_map(Cpu::with).unwrap_or(Cpu::Scalar)
    }

    /// This set; `None` when the CPU does not have it.
    pub fn with(isa: Isa) -> Option<Cpu> {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Avx512::detect().map(Cpu::Avx512),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::detect().map(Cpu::Avx2),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2 => None,
            Isa::Scalar => Some(Cpu::Scalar),
        }
    }

    /// All sets that this CPU has, the fastest first.
    pub fn all() -> impl Iterator<Item = Cpu> {
        Isa::ALL.into_iter().filter_map(Cpu::with)
    }

    /// Name of the set.
    pub fn isa(self) -> Isa {
        match self {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(_) => Isa::Avx512,
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2(_) => Isa::Avx2,
            Cpu::Scalar => Isa::Scalar,
        }
    }

    /// Runs the kernel with these instructions.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(instructions) => instructions.run(Run(kernel)),
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2(instructions) => instructions.run(Run(kernel)),
            Cpu::Scalar => kernel.run(Portable),
        }
    }
}

/// A kernel as a job.
struct Run<K>(K);

impl<K: Kernel, V: Vector> Job<V> for Run<K> {
    type Output = K::Output;

    #[inline(always)]
    fn run(self, vector: V) -> K::Output {
        self.0.run(vector)
    }
}

/// A look-up in rules of type `T`: a kernel whose arguments are passed in registers, for batches of one.
/// Implementations of `look_up` are `#[inline(always)]`, and contain no closures with vectors: each look-up is
/// compiled twice, so the compiler may not inline these.
pub trait LookUp<T> {
    /// Looks up the keys.
    fn look_up<V: Vector>(vector: V, rules: &T, keys: &[Key], verdicts: &mut [Verdict]);
}

/// Looks up keys. A single key has code of its own: the loop would cost more than a tenth of its look-up.
#[inline(always)]
pub(crate) fn look_up<L: LookUp<T>, V: Vector, T>(
    vector: V,
    rules: &T,
    keys: &[Key],
    verdicts: &mut [Verdict],
) {
    match (keys, verdicts) {
        ([key], [verdict, ..]) => L::look_up(vector, rules, slice::from_ref(key), slice::from_mut(verdict)),
        (keys, verdicts) => L::look_up(vector, rules, keys, verdicts),
    }
}

/// A [`LookUp`] compiled for the instructions of a [`Cpu`]: one indirect call, when it is chosen beforehand.
#[derive(Debug)]
// SAFETY: the function needs a CPU with its instructions; `new` takes a function only with the token of its
// set.
pub struct Compiled<T>(unsafe fn(&T, &[Key], &mut [Verdict]));

impl<T> Clone for Compiled<T> {
    fn clone(&self) -> Compiled<T> {
        *self
    }
}

impl<T> Copy for Compiled<T> {}

impl<T> Compiled<T> {
    /// The look-up `L`, compiled for this CPU.
    pub fn new<L: LookUp<T>>(cpu: Cpu) -> Compiled<T> {
        Compiled(match cpu {
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx512(_) => Avx512::look_up::<L, T>,
            #[cfg(target_arch = "x86_64")]
            Cpu::Avx2(_) => Avx2::look_up::<L, T>,
            Cpu::Scalar => |rules, keys, verdicts| look_up::<L, _, T>(Portable, rules, keys, verdicts),
        })
    }

    /// Looks up keys.
    #[inline(always)]
    pub fn call(self, rules: &T, keys: &[Key], verdicts: &mut [Verdict]) {
        // SAFETY: `new` was given the token of the function's instructions, which exists only where the CPU has them.
        unsafe { (self.0)(rules, keys, verdicts) }
    }
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu::detect()
    }
}

/// Code over vectors. Implementations of `run` are `#[inline(always)]`.
pub trait Kernel {
    /// Result of the computation.
    type Output;

    /// Runs the computation.
    fn run<V: Vector>(self, vector: V) -> Self::Output;
}

/// One set of instructions; a value of the type proves that the CPU has them.
///
/// Columns are arrays of `N` lanes; `N` is 8 or 16. In masks, the lowest bit is lane 0.
pub trait Vector: Scan + Compare {
    /// A key to search for, in registers.
    type Probe: Copy;

    /// Spreads the words 0 to 3, with which columns are compared.
    fn probe(self, words: &[u32; WORDS]) -> Self::Probe;

    /// The lanes among the first `USED` whose columns match.
    fn candidates<const USED: usize, const N: usize>(
        self,
        columns: &HotColumns<N>,
        probe: &Self::Probe,
    ) -> u32;

    /// The words of a key that are compared with rows, in registers.
    type Picked: Copy;

    /// Picks words by their indices.
    fn pick(self, words: &[u32; 16], places: &[u32; 8]) -> Self::Picked;

    /// Whether the picked words match a row.
    fn row_matches(self, row: &Row, picked: &Self::Picked) -> bool;

    /// Whether `(word & mask) == value` for each of the words 4 to 19 with a bit in `which`; bit 0 is word 4.
    /// `pairs` has the masks of those words only, then their values.
    fn rest_matches(self, words: &[u32; 16], which: u16, pairs: &[u32]) -> bool;

    /// The lanes that hold `value`.
    fn equal<const N: usize>(self, column: &[u32; N], value: u32) -> u32;

    /// The lanes that hold less than `value`.
    fn less<const N: usize>(self, column: &[u32; N], value: u32) -> u32;

    /// Moves the lanes from `lane` on up by one and puts `value` into the gap. The last lane's value is lost.
    fn insert<const N: usize>(self, column: &mut [u32; N], lane: usize, value: u32);

    /// Moves the lanes behind `lane` down by one, over `lane`, and puts `value` into the last lane.
    fn remove<const N: usize>(self, column: &mut [u32; N], lane: usize, value: u32);
}

/// The columns that every look-up reads; see [`super::block`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HotColumns<const N: usize> {
    pub(super) code: [u32; N],
    pub(super) source: [u32; N],
    pub(super) destination: [u32; N],
    pub(super) first_ports: [u32; N],
    pub(super) span_ports: [u32; N],
}
