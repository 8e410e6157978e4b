//! The program `godwit`. See `lib.rs`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
