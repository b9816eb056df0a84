//! The duck as a Linux process: it holds experts' units and multiplies them for a host.
//!
//! The duck itself is the crate [`node`], which the firmware runs as well; this crate gives it a link, memory, threads and a clock. A [`Node`] is a
//! duck: it may run in the program `duckd` or, several of them, in threads of a test.
//!
//! What it leaves out: recovery and placement are the host's. It never allocates for a step once it has seen the first few of a plan, and it never
//! spins on a processor while it has nothing to do.
//!
//! ```no_run
//! use duckd::{Exit, Node, Options, Stop};
//!
//! let options = Options { memory: 4 << 30, cores: 4, ..Options::new(*b"pigeon-07\0\0\0\0\0\0\0", wire::key::PublicKey([7; 32])) };
//! let link = link::Hub::new().port(link::Mac([2, 0, 0, 0, 0, 7]), 1500);
//! let (mut node, stop) = (Node::new(Box::new(link), options)?, Stop::new());
//! let (monitor, stopper) = (node.monitor(), stop.clone());
//! let duck = std::thread::spawn(move || node.run(&stop));
//! println!("{} blocks", monitor.resident());
//! stopper.trigger();
//! assert_eq!(duck.join().expect("it does not panic"), Exit::Stopped);
//! # Ok::<(), duckd::DuckError>(())
//! ```
#![deny(unsafe_code)]

mod carrier;
mod cores;
mod error;
mod hasher;
mod memory;
mod monitor;
mod node;
mod options;
mod pool;
mod sensors;

pub use error::DuckError;
pub use monitor::{Monitor, Stop};
pub use node::{Exit, Node};
pub use options::{HugePages, LEAST_MEMORY, Options};
