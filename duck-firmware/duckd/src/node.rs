//! The duck: one loop that serves the link, hands blocks out to be hashed, and computes.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use fp9::Isa;
use link::Link;
use rustix::rand::{GetRandomFlags, getrandom};
use wire::Micros;
use wire::crc;
use wire::duck::{Config, Event, Session};
use wire::frame::{MAX_FRAME, MIN_MTU};
use wire::frozen::{Announce, FEATURE_AVX_VNNI, FEATURE_AVX2, FEATURE_HUGE_PAGES, FEATURE_LOCKED, NONCE};
use wire::list::Entry;
use wire::message::Counter;

use crate::blocks::Blocks;
use crate::compute::Compute;
use crate::error::DuckError;
use crate::hasher::{Hashed, Hasher, Purpose};
use crate::monitor::{Monitor, Stop};
use crate::net::{Net, micros};
use crate::options::Options;
use crate::pool::{Patience, Pool, pin_to, processor};
use crate::region::Region;
use crate::results::Results;
use crate::scrub::Rota;
use crate::sensors::Sensors;
use crate::store::Store;

/// What announcements call this program.
const PROGRAM: u8 = 1;
/// Longest sleep: figures and signs of life are at most this old.
const LONGEST_WAIT: Micros = 1_000_000;
/// How long after a frame that began no step the network thread looks for another before it sleeps.
const LINGER_FRAMES: Micros = 50;
/// How often sensors are read at most.
const SENSE_EVERY: Micros = 1_000_000;
/// Most bytes of memory that alignment of blocks may cost.
const MOST_SLACK: u64 = 64 * wire::list::MAX_BLOCKS as u64;

/// Why a duck ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It was told to by [`Stop`].
    Stopped,
    /// The pond's owner wants it to start afresh, with empty memory.
    Reset {
        /// 0: reboot.
        action: u8,
    },
}

/// A duck.
pub struct Node {
    net: Net,
    compute: Compute,
    hasher: Hasher,
    rota: Rota,
    sensors: Sensors,
    monitor: Monitor,
    patience: Patience,
    processor: Option<usize>,
    /// When a step was begun last.
    worked: Micros,
    /// When anything came or was to be done last.
    active: Micros,
    sensed: Option<Micros>,
}

impl Node {
    /// A duck on `link`, with empty memory. Its threads start now, its network thread is whoever calls [`Node::run`].
    ///
    /// # Errors
    /// Impossible options, or too little memory.
    pub fn new(link: Box<dyn Link>, options: Options) -> Result<Node, DuckError> {
        options.check()?;
        let mtu = link.mtu();
        if mtu < MIN_MTU {
            return Err(DuckError::Mtu { link: link.describe(), expected: MIN_MTU, found: mtu });
        }
        let len = usize::try_from(options.memory).unwrap_or(usize::MAX);
        let region = Arc::new(Region::new(len, options.huge_pages)?);
        let locked = options.lock && lock(&region);
        // Blocks start at multiples of 64 bytes; no unit is so short that this costs more than 1/64.
        let memory = region.len() as u64 - MOST_SLACK.min(region.len() as u64 / 64);
        let results = Results::new(options.result / 4 * 4)?;
        let mut boot = [0; 8];
        random(&mut boot)?;
        let announce = Announce {
            protocol: 0,
            program: PROGRAM,
            cores: options.cores as u16,
            features: features(&region, locked),
            memory,
            id: options.id,
            mac: link.mac().0,
            link: u16::try_from(link.speed()).unwrap_or(u16::MAX),
            firmware: firmware(),
            nonce: [0; NONCE],
            epoch: 0,
            resident: 0,
            root: [0; 32],
            lease: 0,
            uptime: 0,
            boot: u64::from_le_bytes(boot),
        };
        let seed = match options.seed {
            Some(seed) => seed,
            None => {
                let mut seed = [0; 32];
                random(&mut seed)?;
                seed
            }
        };
        let config = Config {
            announce,
            kernels: wire::built_in_kernels(),
            key: options.key,
            seed,
            max_frame: mtu.min(MAX_FRAME),
            crc: crc::native,
        };
        let store = Store::new(Blocks::new(region), results.clone(), memory, options.input);
        let patience = Patience::new(options.cores);
        let pool = Pool::new(options.cores - 1, options.pin.as_deref(), patience)?;
        let monitor = Monitor::new(link.waker());
        Ok(Node {
            hasher: Hasher::new(link.waker())?,
            net: Net::new(link, Session::new(0, config, store), Instant::now(), monitor.clone()),
            monitor,
            compute: Compute::new(&options, pool, patience, results),
            rota: Rota::new(options.scrub),
            sensors: Sensors::new(Path::new("/sys")),
            patience,
            processor: processor(options.pin.as_deref(), 0),
            worked: 0,
            active: 0,
            sensed: None,
        })
    }

    /// Its figures, also while it runs.
    pub fn monitor(&self) -> Monitor {
        self.monitor.clone()
    }

    /// Bytes of blocks that it announces to hold.
    pub fn memory(&self) -> u64 {
        wire::duck::Memory::sizes(self.net.session.memory()).blocks
    }

    /// Serves its link until it is told to stop or to start afresh.
    pub fn run(&mut self, stop: &Stop) -> Exit {
        stop.attach(self.net.link.waker());
        pin_to(self.processor);
        let mut looks = 0;
        while !stop.is_triggered() {
            let (mut busy, now) = self.net.poll();
            busy |= self.take_digests();
            while let Some(event) = self.net.session.poll_event() {
                busy = true;
                if let Event::Reset { action } = event {
                    tracing::info!("told to start afresh");
                    return Exit::Reset { action };
                }
                self.handle(event);
            }
            if busy {
                (self.active, looks) = (self.net.now(), 0);
                // What events led to goes out at once.
                let now = self.net.now();
                self.net.send(now);
                continue;
            }
            if self.may_sleep(now) {
                self.rest(now);
            } else {
                self.patience.pause(looks);
                looks += 1;
            }
        }
        Exit::Stopped
    }

    /// Whether nothing is likely to come soon.
    fn may_sleep(&self, now: Micros) -> bool {
        let worked = now.saturating_sub(self.worked) < micros(self.patience.linger()) && self.worked > 0;
        !worked && now.saturating_sub(self.active) >= LINGER_FRAMES
    }

    /// Nothing is to be done: does what has time, then sleeps.
    fn rest(&mut self, now: Micros) {
        if !self.blocks().any_lent()
            && let Some((block, offset)) = self.monitor.wanted_damage()
        {
            self.blocks_mut().flip(block, offset);
        }
        let held = self.net.session.resident();
        if let Some(first) = self.rota.start(now, held, self.active)
            && let Some(block) = self.blocks().next_whole(first)
            && let Some(loan) = self.blocks_mut().lend(block)
        {
            self.rota.started(now, block, held);
            self.hasher.submit(loan, Purpose::Scrub);
        }
        self.publish(now);
        let scrub = self.rota.wake(now, held, self.active);
        self.monitor.waited();
        self.net.wait(now, scrub, LONGEST_WAIT);
    }

    fn publish(&mut self, now: Micros) {
        if self.sensed.is_none_or(|at| now >= at + SENSE_EVERY) {
            self.sensed = Some(now);
            self.net.session.set_counter(Counter::Temperature, self.sensors.temperature());
            self.net.session.set_counter(Counter::Throttled, self.sensors.throttled());
        }
        let session = &self.net.session;
        let blocks = session.list().map_or(0, |l| l.len());
        self.monitor.publish(|c| session.counter(c), session.resident(), blocks);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Opened { same_list } => {
                if let Some(limits) = self.net.session.limits() {
                    self.compute.open(&limits);
                }
                tracing::info!(
                    "opened by a host{}",
                    if same_list { ", with the list of blocks from before" } else { "" }
                );
            }
            Event::Listed => self.arrange(),
            Event::Filled { ticket, block } => match self.blocks_mut().lend(block) {
                Some(loan) => self.hasher.submit(loan, Purpose::Filled { ticket }),
                // Nothing has that digest, so the block starts again.
                None => _ = self.net.session.block_hashed(ticket, block, &[0; 32]),
            },
            Event::Step { slot, .. } => {
                self.hasher.set_computing(true);
                let verdict = self.compute.step(&mut self.net, slot);
                self.hasher.set_computing(false);
                self.net.session.step_done(slot, verdict);
                self.net.session.set_counter(Counter::Units, self.compute.units);
                self.worked = self.net.now();
            }
            Event::LeaseExpired => tracing::info!("the host's lease has expired"),
            Event::Reset { .. } => {}
        }
    }

    /// Another list: keeps what it has of the blocks that are in memory.
    fn arrange(&mut self) {
        while self.blocks().any_lent() {
            let hashed = self.hasher.wait();
            self.settle(hashed);
        }
        self.compute.forget_tables();
        self.rota.restart();
        let list = self.net.session.list();
        let entries: Vec<Entry> = list.map_or(Vec::new(), |l| (0..l.len()).filter_map(|i| l.get(i)).collect());
        let kept = self.blocks_mut().arrange(&entries);
        kept.iter().for_each(|&block| self.net.session.keep_block(block));
        self.net.session.list_ready();
        tracing::info!("list of {} blocks, of which {} are in memory", entries.len(), kept.len());
        let homeless = self.blocks().homeless();
        if homeless > 0 {
            tracing::warn!("{homeless} blocks do not fit the memory once they are aligned");
            self.net.session.log(0, "some blocks do not fit once aligned: their lengths should be multiples of 64");
        }
    }

    /// Whether any digest was ready.
    fn take_digests(&mut self) -> bool {
        let mut any = false;
        while let Some(hashed) = self.hasher.poll() {
            // A check of a held block is no reason to stay awake.
            any |= hashed.purpose != Purpose::Scrub;
            self.settle(hashed);
        }
        any
    }

    fn settle(&mut self, hashed: Hashed) {
        let Hashed { loan, purpose, digest } = hashed;
        let block = loan.block();
        self.blocks_mut().take_back(loan);
        match purpose {
            Purpose::Filled { ticket } => {
                if self.net.session.block_hashed(ticket, block, &digest) {
                    self.blocks_mut().set_whole(block);
                }
            }
            Purpose::Scrub => {
                self.rota.ended();
                self.monitor.scrubbed_one();
                if self.blocks().digest(block).is_some_and(|right| *right != digest) {
                    tracing::error!("block {block} has changed in memory: it will be loaded again");
                    self.blocks_mut().damaged(block);
                    self.net.session.block_damaged(block);
                    self.net.session.log(0, "a block has changed in memory: check this duck's memory");
                }
            }
        }
    }

    fn blocks(&self) -> &Blocks {
        &self.net.session.memory().blocks
    }

    fn blocks_mut(&mut self) -> &mut Blocks {
        &mut self.net.session.memory_mut().blocks
    }
}

/// Locks blocks into memory, or says why not.
fn lock(region: &Region) -> bool {
    let locked = region.lock();
    if let Err(error) = &locked {
        tracing::warn!(
            "blocks are not locked into memory: {error}; raise the limit (ulimit -l, LimitMEMLOCK) or do without"
        );
    }
    locked.is_ok()
}

fn random(bytes: &mut [u8]) -> Result<(), DuckError> {
    // Up to 256 bytes come whole.
    getrandom(bytes, GetRandomFlags::empty()).map(|_| ()).map_err(|error| DuckError::Random(error.into()))
}

fn features(region: &Region, locked: bool) -> u32 {
    let mut features = 0;
    if Isa::detect() != Isa::Scalar {
        features |= FEATURE_AVX2;
    }
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avxvnni") {
        features |= FEATURE_AVX_VNNI;
    }
    if region.huge().is_some() {
        features |= FEATURE_HUGE_PAGES;
    }
    if locked {
        features |= FEATURE_LOCKED;
    }
    features
}

/// Digest of this process's own program; zero where that cannot be read.
fn firmware() -> [u8; 32] {
    static DIGEST: OnceLock<[u8; 32]> = OnceLock::new();
    *DIGEST.get_or_init(|| {
        let mut hasher = blake3::Hasher::new();
        let read = std::fs::File::open("/proc/self/exe").and_then(|mut file| std::io::copy(&mut file, &mut hasher));
        if read.is_ok() { *hasher.finalize().as_bytes() } else { [0; 32] }
    })
}
