//! What a duck stands on: frames and time, cores, gauges. Digests are in their own module.

use alloc::borrow::Cow;
use alloc::string::String;
use core::fmt;

use kernels::{Refusal, Running};
use wire::Micros;
use wire::message::COUNTERS;

/// Frames in and out, time, and how to wait. Frames are whole Ethernet frames without their checksum; what is lost is the host's affair.
pub trait Carrier {
    /// This end's hardware address.
    fn mac(&self) -> [u8; 6];

    /// The time; any clock that does not go back.
    fn now(&self) -> Micros;

    /// Hands over frames that have arrived, at most a batch, without waiting. Returns how many.
    fn rx(&mut self, each: &mut dyn FnMut(&[u8])) -> usize;

    /// Sends a frame: `fill` gets a buffer of at least [`ETHERNET`](wire::ethernet::ETHERNET) + [`Parts::max_frame`](crate::Parts::max_frame) bytes
    /// and returns how many it has written, 0 for nothing to send. Returns whether there was one; `false` without calling `fill` if nothing
    /// can be sent now. Frames may wait until [`Carrier::flush`].
    fn tx(&mut self, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool;

    /// Sends what waits.
    fn flush(&mut self);

    /// Sleeps until a frame has arrived, a digest is ready, or the time is over. It may end early.
    fn wait(&mut self, micros: Micros);

    /// Between the `looks`th look and the next, when something is likely to come soon: spin, or give the processor away.
    fn pause(&mut self, looks: u32) {
        let _ = looks;
        core::hint::spin_loop();
    }

    /// Called at every look at the link, also in the middle of a long step: a sign of life.
    fn beat(&mut self) {}
}

/// How the cores left a step. In all cases no core is in it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All cores returned: done, or why not. A refusal after `serve` has said to give up is no news.
    Finished(Result<(), Refusal>),
    /// One of them went wrong, and all were taken out.
    Trapped {
        /// Which.
        core: u16,
        /// Number of the trap; 0 where there are none.
        trap: u16,
        /// The trap's error code.
        error: u32,
        /// Address that was touched.
        address: u64,
        /// Instruction that did.
        instruction: u64,
    },
    /// Some did not return although they were told to, and all were taken out.
    Overran,
}

/// A program that is not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub Cow<'static, str>);

impl From<&'static str> for Refused {
    fn from(reason: &'static str) -> Refused {
        Refused(Cow::Borrowed(reason))
    }
}

impl From<String> for Refused {
    fn from(reason: String) -> Refused {
        Refused(Cow::Owned(reason))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for Refused {}

/// The cores that compute, core 0 being the caller's.
pub trait Cores {
    /// How many; it does not change. 1 to [`MAX_CORES`](kernels::abi::MAX_CORES).
    fn count(&self) -> usize;

    /// Makes ready to run a program of kernels, once for each session, before its first step: the one that the host has signed, whole and with
    /// the right digest, which is lent for the length of the call; or `None`, the kernels that are built in.
    ///
    /// # Errors
    /// It cannot be run. The host is told the reason, and the session's steps end as [`Unsupported`](wire::message::VerdictCode::Unsupported).
    fn load(&mut self, program: Option<&[u8]>) -> Result<(), Refused>;

    /// Runs a step on all cores, and returns when none is in it any more.
    ///
    /// `serve` is called at every [`boundary`](kernels::Hooks::boundary) of core 0 (at most 20 µs apart), and again and again while core 0 waits for
    /// the others. It serves the link, sends what has become final, and says whether to go on: after a `false` the step is
    /// [aborted](Running::abort), and cores that do not return soon may be taken out of it, which is [`Ended::Overran`]. `limit`: the time, by
    /// [`Carrier::now`], from which on `serve` will say so; for owners whose core 0 may not come back to call it.
    ///
    /// All addresses in the step's block lie in the regions that the duck was made of.
    fn run(&mut self, step: Running<'_>, limit: Option<Micros>, serve: &mut dyn FnMut() -> bool) -> Ended;
}

/// What a duck tells about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// By [`Counter`](wire::message::Counter).
    pub counters: [u64; COUNTERS],
    /// Blocks held.
    pub resident: u32,
    /// Blocks of the list, 0 without one.
    pub blocks: u32,
    /// Held blocks that were checked again.
    pub scrubbed: u64,
}

/// What only the surroundings know, and whoever wants to know the duck's figures.
pub trait Gauges {
    /// The warmest sensor, in thousandths of a degree; 0 if nobody knows. Asked at most once a second.
    fn temperature(&mut self) -> u64;

    /// How often, or how much, processors were slowed down for that. Asked at most once a second.
    fn throttled(&mut self) -> u64;

    /// The duck's figures; called whenever it has nothing to do, before it sleeps.
    fn publish(&mut self, figures: &Figures) {
        let _ = figures;
    }
}
