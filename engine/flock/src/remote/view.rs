//! What others may know of the pond while its engine works: shared by the domains' threads, the coordinator, and whoever asks.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use link::Waker;
use wire::message::Counter;

use wire::frozen::{RESET_OFF, RESET_REBOOT};

use super::message::Command;
use super::seat::Shared;
use super::status::{DuckState, DuckStatus, PondStatus, Stranger};

/// Why nobody hears of a duck any more.
const ENDED: &str = "its port has stopped working, see the log: start the engine again";

/// What the coordinator tells.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// By duck: why it is left out, if it is; `None` where what its domain sees says all.
    pub out: Vec<Option<(DuckState, String)>>,
    /// By port: its thread has ended.
    pub ended: Vec<bool>,
    /// By duck: units when all are there, and now.
    pub units: Vec<u32>,
    pub active: Vec<u32>,
    pub host_units: u32,
    pub plan: u16,
    pub take_overs: u64,
    pub plans: u64,
    pub strangers: Vec<Stranger>,
}

/// The pond's state behind locks that nobody holds for long.
#[derive(Debug)]
pub(super) struct View {
    /// By duck: its name, its port and seat.
    pub ducks: Vec<(String, usize, usize)>,
    /// By port: its name, and what its thread tells.
    pub ports: Vec<(String, Arc<Mutex<Vec<Shared>>>)>,
    pub block_bytes: u64,
    pub told: Mutex<Told>,
}

/// Answers how the pond is, from any thread, also while nobody polls the flock.
#[derive(Clone, Debug)]
pub struct PondHandle {
    pub(super) view: Arc<View>,
    /// By port.
    pub(super) commands: Vec<(SyncSender<Command>, Waker)>,
}

impl PondHandle {
    /// How the pond is.
    pub fn status(&self) -> PondStatus {
        self.view.status()
    }

    /// Tells a duck, by its place among all, to start afresh. False if there is none, it was never heard of, or its domain has ended.
    pub fn reset(&self, duck: usize) -> bool {
        self.tell(duck, RESET_REBOOT)
    }

    /// Tells a duck to power off, as far as it can. Returns whether it was told.
    pub fn power_off(&self, duck: usize) -> bool {
        self.tell(duck, RESET_OFF)
    }

    fn tell(&self, duck: usize, action: u8) -> bool {
        let Some(&(_, port, seat)) = self.view.ducks.get(duck) else { return false };
        let (commands, waker) = &self.commands[port];
        if self.view.shared(duck, |shared| shared.announce.is_none()) {
            return false;
        }
        let sent = commands.send(Command::Reset { seat, action }).is_ok();
        waker.wake();
        sent
    }
}

impl View {
    pub fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What a duck's domain tells of it.
    pub fn shared<R>(&self, duck: usize, read: impl FnOnce(&Shared) -> R) -> R {
        let (_, port, seat) = self.ducks[duck];
        let shared = self.ports[port].1.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        read(&shared[seat])
    }

    fn status(&self) -> PondStatus {
        let told = self.told().clone();
        let ducks = (0..self.ducks.len()).map(|at| self.duck(at, &told)).collect();
        let Told { strangers, host_units, plan, take_overs, plans, .. } = told;
        PondStatus { ducks, strangers, host_units, plan, take_overs, plans }
    }

    fn duck(&self, at: usize, told: &Told) -> DuckStatus {
        let shared = self.shared(at, Shared::clone);
        let (name, port, _) = &self.ducks[at];
        let announce = shared.announce.as_ref();
        let gauge = |which: Counter| shared.counters.as_ref().map_or(0, |counters| counters[which as usize]);
        let (state, note) = match told.out.get(at).cloned().flatten() {
            // What the thread told last does not hold any more.
            _ if told.ended[*port] => (DuckState::Silent, ENDED.to_owned()),
            Some(out) if out.0 == DuckState::Refused || shared.up => out,
            _ => (state(&shared), String::new()),
        };
        DuckStatus {
            name: name.clone(),
            port: self.ports[*port].0.clone(),
            state,
            note,
            mac: shared.mac,
            memory: announce.map_or(0, |a| a.memory),
            link: announce.map_or(0, |a| a.link.into()),
            cores: announce.map_or(0, |a| a.cores),
            units: told.units.get(at).copied().unwrap_or(0),
            active: told.active.get(at).copied().unwrap_or(0),
            resident: shared.holds.0,
            blocks: shared.holds.1,
            block_bytes: self.block_bytes,
            load_bytes: shared.stats.load_bytes,
            steps: shared.sample.steps,
            step_time: Duration::from_micros(shared.mean as u64),
            busy: Duration::from_micros(gauge(Counter::Busy).checked_div(gauge(Counter::Steps)).unwrap_or(0)),
            retries: shared.stats.asks + shared.stats.input_repeats,
            losses: shared.stats.losses,
            // Counters come from frames, which anybody on the segment can forge.
            blocks_wrong: shared.stats.blocks_wrong.saturating_add(gauge(Counter::BlocksLost)),
            temperature: match gauge(Counter::Temperature) {
                0 => None,
                thousandths => Some(thousandths as f32 / 1000.0),
            },
            throttled: gauge(Counter::Throttled),
            path: shared.path,
        }
    }
}

/// What the domain's thread knows.
fn state(shared: &Shared) -> DuckState {
    let (resident, blocks) = shared.holds;
    match (shared.announce, shared.up) {
        (None, _) => DuckState::Absent,
        (Some(_), true) if resident < blocks => DuckState::Loading,
        (Some(_), true) => DuckState::Ready,
        (Some(_), false) if shared.stats.losses > 0 => DuckState::Silent,
        (Some(_), false) => DuckState::Opening,
    }
}
