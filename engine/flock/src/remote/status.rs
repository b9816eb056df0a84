//! How the pond is, for people and for metrics.

use std::time::Duration;

/// How far a duck is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DuckState {
    /// Never heard of.
    #[default]
    Absent,
    /// Found; its session is being opened.
    Opening,
    /// Blocks are on their way.
    Loading,
    /// It computes.
    Ready,
    /// It has not answered for a moment: others compute for it until it does.
    Late,
    /// It was there, and does not answer.
    Silent,
    /// It does not take the session.
    Refused,
    /// It is there, but failed a step.
    Unfit,
}

impl DuckState {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            DuckState::Absent => "absent",
            DuckState::Opening => "opening",
            DuckState::Loading => "loading",
            DuckState::Ready => "ready",
            DuckState::Late => "late",
            DuckState::Silent => "silent",
            DuckState::Refused => "refused",
            DuckState::Unfit => "unfit",
        }
    }
}

/// One duck.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DuckStatus {
    /// Its name in the pond's description.
    pub name: String,
    /// Its port's name.
    pub port: String,
    /// How far it is.
    pub state: DuckState,
    /// Why it is not ready, if more is known; empty otherwise.
    pub note: String,
    /// Hardware address, once heard of.
    pub mac: Option<link::Mac>,
    /// Bytes that it can hold.
    pub memory: u64,
    /// Speed of its link in Mbit/s, 0 if unknown.
    pub link: u32,
    /// Cores that compute.
    pub cores: u16,
    /// Units of every layer that it computes when all are there.
    pub units: u32,
    /// Units of every layer that it computes now.
    pub active: u32,
    /// Blocks that it holds, of how many.
    pub resident: u32,
    /// See `resident`.
    pub blocks: u32,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes of blocks sent to it, repeated ones included.
    pub load_bytes: u64,
    /// Steps that it finished.
    pub steps: u64,
    /// Mean time of a step as the host sees it, over the last some hundred.
    pub step_time: Duration,
    /// Mean time that it computed in a step, by its own account.
    pub busy: Duration,
    /// Times that results were asked for again, and input fragments sent again.
    pub retries: u64,
    /// Times that it fell silent.
    pub losses: u64,
    /// Complete blocks that had the wrong digest when they arrived, and later.
    pub blocks_wrong: u64,
    /// Degrees, if it tells.
    pub temperature: Option<f32>,
    /// Its own count of throttling.
    pub throttled: u64,
    /// Longest frame that gets through, 0 if unknown.
    pub path: usize,
}

/// A duck that is in no row of the description.
#[derive(Clone, Debug, PartialEq)]
pub struct Stranger {
    /// What it calls itself.
    pub name: String,
    /// The port that it was heard on.
    pub port: String,
    /// Its address.
    pub mac: link::Mac,
    /// Bytes that it can hold.
    pub memory: u64,
    /// Speed of its link in Mbit/s, 0 if unknown.
    pub link: u32,
    /// Whose row its address or name is in, if that row says another port.
    pub expected_on: Option<String>,
}

/// The whole pond.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PondStatus {
    /// By row of the description.
    pub ducks: Vec<DuckStatus>,
    /// Heard of, but in no row.
    pub strangers: Vec<Stranger>,
    /// Units of every layer that the host computes now.
    pub host_units: u32,
    /// Version of the plan in force.
    pub plan: u16,
    /// Nodes of steps that others took over in the middle.
    pub take_overs: u64,
    /// Plans made since the start.
    pub plans: u64,
}

/// An identity as text: what it is made of if that is printable, else hexadecimal digits.
pub fn identity_name(id: &[u8; 16]) -> String {
    let end = id.iter().position(|&b| b == 0).unwrap_or(id.len());
    let printable = end > 0 && id[..end].iter().all(|b| b.is_ascii_graphic()) && id[end..].iter().all(|&b| b == 0);
    match printable {
        true => id[..end].iter().map(|&b| char::from(b)).collect(),
        false => id.iter().map(|b| format!("{b:02x}")).collect(),
    }
}
