//! Vector instruction sets that not every processor has. Each has a token: a value of the token's type proves
//! that this processor supports the whole set.
//!
//! The macro `instructions` is the only place of this crate that names instructions. One list gives both the
//! features to detect and the features to compile for, so the two cannot differ. `cargo xtask tidy` refuses the
//! attribute `target_feature` elsewhere.
//!
//! Code for an instruction set is a [`Job`] that the token runs. Everything that [`Job::run`] calls is
//! `#[inline(always)]`: a function that is not inlined would be compiled without the instructions, which is
//! correct but slow.

#[cfg(target_arch = "x86_64")]
use crate::simd::isa::{self, LookUp};
#[cfg(target_arch = "x86_64")]
use crate::{Key, Verdict};

/// A computation with the instructions for which `T` stands. Implementations of `run` are `#[inline(always)]`.
pub trait Job<T> {
    /// Result of the computation.
    type Output;

    /// Runs the computation.
    fn run(self, instructions: T) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
macro_rules! instructions {
    ($(#[$doc:meta])* $token:ident: $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $token(());

        impl $token {
            /// The token, if this processor has all instructions of the set.
            pub fn detect() -> Option<$token> {
                let has_all = true $(&& std::arch::is_x86_feature_detected!($feature))+;
                has_all.then_some($token(()))
            }

            /// Runs a job that is compiled for these instructions.
            #[inline]
            pub fn run<J: Job<$token>>(self, job: J) -> J::Output {
                $(#[target_feature(enable = $feature)])+
                fn compiled<J: Job<$token>>(token: $token, job: J) -> J::Output {
                    job.run(token)
                }
                // SAFETY: only `detect` makes tokens, after it found every feature that `compiled` is compiled
                // for.
                unsafe { compiled(self, job) }
            }

            /// Looks up keys in rules, compiled for these instructions. A function of its own, because callers
            /// take its address.
            ///
            /// # Safety
            /// The caller must hold a token of this instruction set.
            $(#[target_feature(enable = $feature)])+
            pub(crate) unsafe fn look_up<L: LookUp<T>, T>(rules: &T, keys: &[Key], verdicts: &mut [Verdict]) {
                isa::look_up::<L, _, T>($token(()), rules, keys, verdicts);
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
instructions! {
    /// AVX2, and the bit-manipulation instructions that came with it or before.
    Avx2: "avx2", "bmi1", "bmi2", "popcnt", "lzcnt"
}

#[cfg(target_arch = "x86_64")]
instructions! {
    /// AVX-512 F, BW and VL, with everything that [`Avx2`] includes.
    Avx512: "avx512f", "avx512bw", "avx512vl", "avx2", "bmi1", "bmi2", "popcnt", "lzcnt"
}
