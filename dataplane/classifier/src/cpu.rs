//! Vector instructions that not every processor has, each set with a token: a value of it proves that this processor
//! has the whole set.
//!
//! The macro `instructions` is the only place of this crate that names instructions. From one list it makes both the
//! question to the processor and the functions that are compiled for the set, so the two cannot differ. `cargo xtask
//! tidy` refuses the attribute `target_feature` elsewhere.
//!
//! Code for a set is a [`Job`] that the token runs. Everything between [`Job::run`] and the instructions is
//! `#[inline(always)]`: code left outside would be compiled without them, which is slow, though right.

#[cfg(target_arch = "x86_64")]
use crate::simd::isa::{self, LookUp};
#[cfg(target_arch = "x86_64")]
use crate::{Key, Verdict};

/// Something to compute with the instructions that `T` stands for. Implementations of `run` are `#[inline(always)]`.
pub trait Job<T> {
    /// What it computes.
    type Output;

    /// Computes it.
    fn run(self, instructions: T) -> Self::Output;
}

#[cfg(target_arch = "x86_64")]
macro_rules! instructions {
    ($(#[$doc:meta])* $token:ident: $($feature:tt),+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $token(());

        impl $token {
            /// The token, when this processor has all of the instructions.
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
                // SAFETY: `self` was made by `detect`, which asked for each feature that `compiled` is compiled for.
                unsafe { compiled(self, job) }
            }

            /// Looks keys up in rules, compiled for these instructions: a function to take the address of.
            ///
            /// # Safety
            /// There is a token.
            $(#[target_feature(enable = $feature)])+
            pub(crate) unsafe fn look_up<L: LookUp<T>, T>(rules: &T, keys: &[Key], verdicts: &mut [Verdict]) {
                isa::look_up::<L, _, T>($token(()), rules, keys, verdicts);
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
instructions! {
    /// AVX2, and the instructions on bits that came before or with it.
    Avx2: "avx2", "bmi1", "bmi2", "popcnt", "lzcnt"
}

#[cfg(target_arch = "x86_64")]
instructions! {
    /// AVX-512 F, BW and VL, with all that [`Avx2`] stands for.
    Avx512: "avx512f", "avx512bw", "avx512vl", "avx2", "bmi1", "bmi2", "popcnt", "lzcnt"
}
