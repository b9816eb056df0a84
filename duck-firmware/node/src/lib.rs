//! A duck without its surroundings: what `duckd` and the bare-metal supervisor have in common, so that no host can tell them apart but by
//! their announcements.
//!
//! [`wire::duck::Session`] is the protocol and the `kernels` crate the arithmetic. [`Duck`] joins them: it keeps a session's blocks, has them
//! hashed, decodes inputs, lays out what the kernels read, streams results while a step runs, and says how a step ended. Its surroundings come
//! as four traits: a [`Carrier`] for frames and time, [`Cores`] that run the kernels, [`Digests`] that hash, and [`Gauges`]; and as [`Region`]s
//! of memory. `no_std` with `alloc`.
//!
//! What it leaves out: threads, files, an operating system, where memory comes from, and what stops a core that does not return. Everything that
//! the kernels touch lies in the regions, nothing of it on the heap, so an owner can give the kernels an address space with those alone.
#![cfg_attr(not(test), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

mod blocks;
mod compute;
mod digests;
mod duck;
mod input;
mod net;
mod places;
mod region;
mod results;
mod scrub;
mod seams;
mod shared;
mod store;
mod tables;

pub use blocks::Loan;
pub use digests::{Digests, Hashed, Purpose, SLICE, Sliced};
pub use duck::{Duck, Exit, Parts};
pub use region::Region;
pub use seams::{Carrier, Cores, Ended, Figures, Gauges, Refused};

/// Blocks that may wait to be hashed at once: a session has [`LOADS`](wire::duck::LOADS) of them, and one is checked again.
pub const MOST_LENT: usize = wire::duck::LOADS + 1;
