//! Futures whose code is compiled in the crate that defines them.

use std::pin::Pin;

/// What the entry of a crate returns, such as `start` of an NF.
///
/// The code of an `async fn`, and of all that it awaits, is compiled in each program that awaits it, and is optimised as that program
/// is. A plain function with `Box::pin(async move { … })` in it has this code compiled once, and optimised as its own crate is.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
