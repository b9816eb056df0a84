//! The pond as the page and the metrics show it.

use serde::Serialize;

/// Ports and ducks at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PondStatus {
    /// What computes, once it does.
    pub build: Option<Build>,
    /// The host's ports, each with a broadcast domain behind it; empty where all ducks are in the host's process.
    pub ports: Vec<Port>,
    /// The ducks, in the plan's order.
    pub ducks: Vec<Duck>,
    /// Steps that units were taken over from a duck.
    pub take_overs: u64,
}

/// What program computes, and where it came from. What is unknown, or does not exist on this system, is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Build {
    /// Its version.
    pub version: String,
    /// Its store path where Nix built it, else its file.
    pub program: String,
    /// The store path of the NixOS system that is on.
    pub system: String,
    /// The number of that system's generation.
    pub generation: Option<u64>,
    /// The NAR hash of the program that ducks are sent.
    pub kernels_hash: String,
}

/// A port of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// `up` or `down`.
    pub state: String,
    /// Mbit/s; 0 where nobody knows.
    pub speed_mbit: u32,
    /// Frames sent again or asked for again.
    pub retries: u64,
    /// Times that its ducks fell silent.
    pub losses: u64,
}

/// A duck.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Duck {
    /// Its name.
    pub name: String,
    /// The port behind which it is; empty in the host's process.
    pub port: String,
    /// What it does, in a word: `ready` where it computes, `loading`, `late`, `silent` …
    pub state: String,
    /// Why it is not ready, if more is known.
    pub note: String,
    /// Units of a layer that the plan gives it.
    pub units: u64,
    /// Units of a layer that it computes now.
    pub active: u64,
    /// Blocks of weights that it holds; 0 in the host's process.
    pub resident: u64,
    /// Blocks of weights that it is to hold; 0 in the host's process.
    pub blocks: u64,
    /// Steps so far.
    pub steps: u64,
    /// Recent mean time of a step, in microseconds.
    pub step_us: f64,
    /// Requests repeated to it so far.
    pub retries: u64,
    /// Times that it fell silent so far.
    pub losses: u64,
    /// Degrees Celsius, if it has a sensor.
    pub temperature: Option<f32>,
    /// How often it was slowed down by heat, by its own count.
    pub throttled: u64,
}
