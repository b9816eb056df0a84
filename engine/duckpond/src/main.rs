//! The program `duckpond`; everything is in the library beside it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    duckpond::run(std::env::args_os())
}
