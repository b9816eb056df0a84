//! Golden data for tests: what independent programs computed, and the checkpoint they computed it from.
//!
//! The results lie in `data/` and are read as they are. The checkpoint itself, 21 MB of random weights in the published
//! on-disk layout, is not stored: [`deepseek_v32_tiny`] draws it again, bit for bit, from its seed and checks every file's
//! SHA-256 before anyone sees it. `README.md` beside this crate says who computed what, and how closely to agree.
//!
//! This crate is linked into tests only, so its functions panic, as an assertion does, where a file or tensor is missing:
//! the message names the object, what was expected and what was found. It depends on no other crate of the project, so that
//! nothing under test can help to produce its own expected values.

#![forbid(unsafe_code)]

mod case;
mod checkpoint;
pub mod compare;
mod duckling;
mod error;
mod fixture;
mod float8;
mod normal;
mod pcg64;
mod shards;
mod spec;
mod sums;
mod tensors;

pub use case::{Case, DraftStep, fp8path};
pub use duckling::{DucklingCase, duckling_greedy};
pub use fixture::{deepseek_v32_tiny, deepseek_v32_tiny_in};
pub use tensors::{GoldenBytes, GoldenIds, GoldenTensor, TensorSet, ops};

use std::path::PathBuf;

use error::Error;

/// The folder of the committed data. A test program that was carried to another machine runs in the repository's root there.
fn data_dir() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data");
    if built.is_dir() { built } else { PathBuf::from("tests/golden/data") }
}

/// Unwraps, or fails the calling test with the error's own message.
#[track_caller]
fn or_fail<T>(result: Result<T, Error>) -> T {
    result.unwrap_or_else(|error| panic!("golden data: {error}"))
}
