//! The program `godwit-bench`. See `command.rs`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::command::main()
}
