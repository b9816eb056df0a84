//! A duck's place in its domain.

use std::mem::Discriminant;

use link::Mac;
use wire::Micros;
use wire::frozen::{Announce, identity};
use wire::host::{Peer, Refusal, Stats};
use wire::message::COUNTERS;

use super::active::SeatMemory;
use super::balance::Sample;

/// Part of a new step in the mean time of steps.
const SMOOTH: f64 = 1.0 / 64.0;

/// One duck, as its domain's thread sees it.
pub(super) struct Seat {
    /// Its place among all ducks.
    pub duck: usize,
    pub name: String,
    /// Its address by the description.
    pub mac: Option<Mac>,
    /// Its address by its announcements.
    pub known: Option<Mac>,
    pub announce: Option<Announce>,
    pub peer: Option<Box<Peer<SeatMemory>>>,
    /// The plan version that it was told of last.
    pub version: Option<u16>,
    /// Blocks that it holds, of how many.
    pub holds: (u32, u32),
    /// How it refused the session last, if it did.
    pub refused: Option<Discriminant<Refusal>>,
    /// Who else claims this place.
    pub rival: Option<Mac>,
    /// It wants a program of kernels and there is none; people were told.
    pub unequipped: bool,
    /// It was reported as late.
    pub late: bool,
    /// Its inputs go to it alone.
    pub unicast: bool,
    /// Sessions opened.
    pub opened: u16,
    /// Since the start.
    pub sample: Sample,
    /// Mean microseconds of a step.
    pub mean: f64,
    /// Steps, and such as had input sent again, of the present trial; repeats at its last step.
    trial: (u32, u32, u64),
}

/// What an announcement was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identified {
    /// A duck, or a start of one, that was not heard of before.
    New,
    /// The one that sits here.
    Known,
    /// Another machine than before.
    Replaced,
    /// Somebody else's, while the one that sits here is well.
    Ignored,
}

/// What others may see of a seat.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    pub mac: Option<Mac>,
    pub announce: Option<Announce>,
    pub up: bool,
    pub holds: (u32, u32),
    pub stats: Stats,
    pub counters: Option<[u64; COUNTERS]>,
    pub sample: Sample,
    pub mean: f64,
    pub path: usize,
}

impl Seat {
    pub fn new(duck: usize, name: String, mac: Option<Mac>) -> Seat {
        Seat {
            duck,
            name,
            mac,
            known: None,
            announce: None,
            peer: None,
            version: None,
            holds: (0, 0),
            refused: None,
            rival: None,
            unequipped: false,
            late: false,
            unicast: false,
            opened: 0,
            sample: Sample::default(),
            mean: 0.0,
            trial: (0, 0, 0),
        }
    }

    /// Whether an announcement is of the duck that this seat is for: by its address if the row has one, else by its name.
    pub fn is_meant(&self, from: Mac, announce: &Announce) -> bool {
        match self.mac {
            Some(mac) => mac == from,
            None => identity(&self.name) == Some(announce.id),
        }
    }

    /// The duck was heard of.
    pub fn identify(&mut self, from: Mac, announce: &Announce) -> Identified {
        let up = self.peer.as_ref().is_some_and(|peer| peer.is_up());
        if let (true, Some(known)) = (up, self.known.filter(|&known| known != from)) {
            if self.rival.replace(from) != Some(from) {
                tracing::warn!(duck = %self.name, "two ducks call themselves so: {known} and {from}; the second is ignored");
            }
            return Identified::Ignored;
        }
        let before = self.announce.replace(*announce);
        self.known = Some(from);
        match before {
            Some(before) if before.id != announce.id => Identified::Replaced,
            Some(before) if before.boot == announce.boot => Identified::Known,
            _ => Identified::New,
        }
    }

    /// Whether it is sent steps, and by broadcast.
    pub fn hears_all(&self) -> bool {
        !self.late && !self.unicast && self.peer.as_ref().is_some_and(|peer| peer.is_up())
    }

    /// A step took so long.
    pub fn smooth(&mut self, micros: Micros) {
        let micros = micros as f64;
        self.mean = if self.mean == 0.0 { micros } else { self.mean + (micros - self.mean) * SMOOTH };
    }

    /// Counts a step for the question whether broadcasts reach the duck; true when it has just been decided that they do not.
    pub fn trial(&mut self, repeats: u64, steps: u32) -> bool {
        let (seen, bad, before) = self.trial;
        self.trial = (seen + 1, bad + u32::from(repeats > before), repeats);
        if self.trial.0 < steps || self.unicast {
            return false;
        }
        let fails = 2 * self.trial.1 > self.trial.0;
        self.trial = (0, 0, repeats);
        self.unicast = fails;
        fails
    }

    pub fn share(&self, out: &mut Shared) {
        (out.mac, out.announce, out.sample, out.mean) = (self.known, self.announce, self.sample, self.mean);
        out.holds = self.holds;
        out.up = false;
        if let Some(peer) = &self.peer {
            out.up = peer.is_up();
            out.stats = *peer.stats();
            out.counters = peer.counters().copied();
            out.path = peer.path();
        }
    }
}
