//! What tests of the project's Nix files share: where the files are, their names and format, and Nix itself where the machine has one.

#![forbid(unsafe_code)]

mod descriptions;
mod evaluate;
mod source;

use std::path::{Path, PathBuf};

pub use descriptions::{Case, cases, engine_verdict};
pub use evaluate::{evaluate, nix_or_missing};
pub use source::{formatted, nix_files, unused_names};

/// The repository.
///
/// # Panics
/// If this crate was moved.
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate lies two folders deep").into()
}
