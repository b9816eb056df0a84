//! The duck: one loop that serves the carrier, hands blocks out to be hashed, and computes.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;

use wire::duck::{Config, Event, Memory, Session};
use wire::frame::MAX_FRAME;
use wire::frozen::{Announce, ID, NONCE};
use wire::key::PublicKey;
use wire::list::{Entry, MAX_BLOCKS, PROGRAM_LAYER};
use wire::message::{COUNTERS, Counter};
use wire::{Crc, Micros};

use crate::blocks::Blocks;
use crate::compute::Compute;
use crate::digests::{Digests, Hashed, Purpose};
use crate::net::Net;
use crate::region::Region;
use crate::results::Results;
use crate::scrub::Rota;
use crate::seams::{Carrier, Cores, Figures, Gauges};
use crate::store::Store;

/// Longest sleep: figures and signs of life are at most this old.
const LONGEST_WAIT: Micros = 1_000_000;
/// How long after a frame that began no step the duck looks for another before it sleeps.
const LINGER_FRAMES: Micros = 50;
/// How often gauges are read at most.
const SENSE_EVERY: Micros = 1_000_000;
/// Most bytes of memory that alignment of blocks may cost.
const MOST_SLACK: usize = 64 * MAX_BLOCKS;

/// Why a duck ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The pond's owner wants it to start afresh, with empty memory.
    Reset {
        /// See [`wire::frozen::RESET_REBOOT`].
        action: u8,
    },
}

/// What a [`Duck`] is made from beside its surroundings.
#[derive(Debug)]
pub struct Parts {
    /// What announcements call the program: 0 nest, 1 duckd, 2 in the host's process.
    pub program: u8,
    /// What it has: the `FEATURE_` constants of [`wire::frozen`].
    pub features: u32,
    /// Who: the same across restarts.
    pub id: [u8; ID],
    /// Speed of its link in Mbit/s, 0 if nobody knows.
    pub link: u16,
    /// blake3 of its firmware image, zero if nobody knows.
    pub firmware: [u8; 32],
    /// A random number, another at every start.
    pub boot: u64,
    /// blake3 of the kernels that are built in, which need no signature; zero for none.
    pub kernels: [u8; 32],
    /// The pond's public key.
    pub key: PublicKey,
    /// 32 random bytes, never used before. Nonces follow from them.
    pub seed: [u8; 32],
    /// Bytes after the Ethernet header that the carrier can send and receive, at least [`MIN_MTU`](wire::frame::MIN_MTU).
    pub max_frame: usize,
    /// Checksums.
    pub crc: Crc,
    /// For blocks. The kernels read them. What is announced is 1/64 less, at most 4 MiB, since blocks are aligned.
    pub blocks: Region,
    /// For results, in [`STEPS`](wire::duck::STEPS) slots of 4 × nodes × lanes × hidden bytes. The kernels write them.
    pub results: Region,
    /// For all else that the kernels touch: what they share with their owner, and their scratch. Steps that need more end as
    /// [`MemoryLimit`](wire::message::VerdictCode::MemoryLimit).
    pub shared: Region,
    /// Bytes of a step's input, of which there are [`STEPS`](wire::duck::STEPS), on the heap.
    pub input: usize,
    /// Core 0's part of the work in 256ths of another core's, 1 to [`FULL_SHARE`](kernels::abi::FULL_SHARE).
    pub core0_share: u32,
    /// In what time all blocks are hashed again, while nothing else is to be done; `None` for never.
    pub scrub: Option<Micros>,
    /// How long after a step the duck looks for the next without sleeping: the time between two layers of one token.
    pub linger: Micros,
}

/// A duck. Its owner calls [`Duck::turn`] again and again.
#[derive(Debug)]
pub struct Duck<C, K, D, G> {
    net: Net<C>,
    cores: K,
    digests: D,
    gauges: G,
    compute: Compute,
    rota: Rota,
    linger: Micros,
    /// When a step ended last.
    worked: Option<Micros>,
    /// When anything came or was to be done last.
    active: Micros,
    sensed: Option<Micros>,
    scrubbed: u64,
    /// Looks since anything came.
    looks: u32,
}

impl<C: Carrier, K: Cores, D: Digests, G: Gauges> Duck<C, K, D, G> {
    /// A duck with empty memory. It takes some 3 MB and four times `parts.input` bytes from the heap, and hardly more later.
    pub fn new(parts: Parts, carrier: C, cores: K, digests: D, gauges: G) -> Duck<C, K, D, G> {
        // Blocks start at multiples of 64 bytes; no unit is so short that this costs more than 1/64.
        let memory = (parts.blocks.len() - MOST_SLACK.min(parts.blocks.len() / 64)) as u64;
        let announce = Announce {
            protocol: 0,
            program: parts.program,
            cores: u16::try_from(cores.count()).unwrap_or(u16::MAX),
            features: parts.features,
            memory,
            id: parts.id,
            mac: carrier.mac(),
            link: parts.link,
            firmware: parts.firmware,
            nonce: [0; NONCE],
            epoch: 0,
            resident: 0,
            root: [0; 32],
            lease: 0,
            uptime: 0,
            boot: parts.boot,
        };
        let config = Config {
            announce,
            kernels: parts.kernels,
            key: parts.key,
            seed: parts.seed,
            max_frame: parts.max_frame.min(MAX_FRAME),
            crc: parts.crc,
        };
        let results = Results::new(parts.results);
        let store = Store::new(Blocks::new(Arc::new(parts.blocks)), results.clone(), memory, parts.input);
        let now = carrier.now();
        Duck {
            compute: Compute::new(cores.count(), parts.core0_share, results, parts.shared),
            net: Net::new(carrier, Session::new(now, config, store)),
            cores,
            digests,
            gauges,
            rota: Rota::new(parts.scrub),
            linger: parts.linger,
            worked: None,
            active: now,
            sensed: None,
            scrubbed: 0,
            looks: 0,
        }
    }

    /// Takes what has come, does what there is to do, or rests: at most a second, or a step's time.
    pub fn turn(&mut self) -> Option<Exit> {
        let (mut busy, now) = self.net.poll();
        busy |= self.take_digests();
        while let Some(event) = self.net.session.poll_event() {
            busy = true;
            if let Event::Reset { action } = event {
                log::info!("told to start afresh");
                return Some(Exit::Reset { action });
            }
            self.handle(event);
        }
        if busy {
            self.load_program();
            // What events led to goes out at once.
            let now = self.net.now();
            (self.active, self.looks) = (now, 0);
            self.net.send(now);
        } else if self.may_sleep(now) {
            self.rest(now);
        } else if !self.digests.is_waiting() {
            self.net.carrier.pause(self.looks);
            self.looks = self.looks.saturating_add(1);
        }
        None
    }

    /// Sends a line to the host, for people; 0 is an error, 1 a warning, 2 information, 3 a detail. Lines may get lost.
    pub fn log(&mut self, level: u8, text: &str) {
        self.net.session.log(level, text);
    }

    /// How it is.
    pub fn figures(&self) -> Figures {
        let session = &self.net.session;
        let mut counters = [0; COUNTERS];
        for (code, value) in counters.iter_mut().enumerate() {
            *value = Counter::from_code(code as u8).map_or(0, |counter| session.counter(counter));
        }
        let blocks = session.list().map_or(0, |l| l.len() as u32);
        Figures { counters, resident: session.resident(), blocks, scrubbed: self.scrubbed }
    }

    /// Bytes of blocks that it announces to hold.
    pub fn memory(&self) -> u64 {
        self.net.session.memory().sizes().blocks
    }

    /// What carries its frames.
    pub fn carrier(&self) -> &C {
        &self.net.carrier
    }

    /// What carries its frames.
    pub fn carrier_mut(&mut self) -> &mut C {
        &mut self.net.carrier
    }

    /// Its cores.
    pub fn cores(&self) -> &K {
        &self.cores
    }

    /// Its cores.
    pub fn cores_mut(&mut self) -> &mut K {
        &mut self.cores
    }

    /// Changes one byte of a block in memory, to see it found out; `false` if that must wait until blocks are hashed. For tests.
    #[doc(hidden)]
    pub fn flip_byte(&mut self, block: u32, offset: usize) -> bool {
        let free = !self.blocks().any_lent();
        if free {
            self.blocks_mut().flip(block, offset);
        }
        free
    }

    /// Whether nothing is likely to come soon, and nothing else is to be done.
    fn may_sleep(&self, now: Micros) -> bool {
        let worked = self.worked.is_some_and(|at| now.saturating_sub(at) < self.linger);
        !worked && now.saturating_sub(self.active) >= LINGER_FRAMES && !self.digests.is_waiting()
    }

    /// Nothing is to be done: does what has time, then sleeps.
    fn rest(&mut self, now: Micros) {
        let held = self.net.session.resident();
        if let Some(first) = self.rota.start(now, held, self.active)
            && let Some(block) = self.blocks().next_whole(first)
            && let Some(loan) = self.blocks_mut().lend(block)
        {
            self.rota.started(now, block, held);
            self.digests.submit(loan, Purpose::Scrub);
        }
        self.publish(now);
        if !self.digests.is_waiting() {
            let scrub = self.rota.wake(now, held, self.active);
            self.net.wait(now, scrub, LONGEST_WAIT);
        }
    }

    fn publish(&mut self, now: Micros) {
        if self.sensed.is_none_or(|at| now >= at + SENSE_EVERY) {
            self.sensed = Some(now);
            self.net.session.set_counter(Counter::Temperature, self.gauges.temperature());
            self.net.session.set_counter(Counter::Throttled, self.gauges.throttled());
        }
        let figures = self.figures();
        self.gauges.publish(&figures);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Opened { same_list } => {
                if let Some(limits) = self.net.session.limits() {
                    self.compute.open(&limits);
                }
                log::info!("opened by a host{}", if same_list { ", with the list of blocks from before" } else { "" });
            }
            Event::Listed => self.arrange(),
            Event::Filled { ticket, block } => match self.blocks_mut().lend(block) {
                Some(loan) => self.digests.submit(loan, Purpose::Filled { ticket }),
                // Nothing has that digest, so the block starts again.
                None => _ = self.net.session.block_hashed(ticket, block, &[0; 32]),
            },
            Event::Step { slot, .. } => {
                self.load_program();
                self.digests.set_computing(true);
                let verdict = self.compute.step(&mut self.net, &mut self.cores, slot);
                self.digests.set_computing(false);
                self.net.session.step_done(slot, verdict);
                self.net.session.set_counter(Counter::Units, self.compute.units);
                self.worked = Some(self.net.now());
            }
            Event::LeaseExpired => log::info!("the host's lease has expired"),
            Event::Reset { .. } => {}
        }
    }

    /// Tells the cores which program the session runs, once that is known and whole. All events so far were handled, so the blocks are the list's.
    fn load_program(&mut self) {
        if !self.compute.wants_program() {
            return;
        }
        let Some(list) = self.net.session.list() else { return };
        // A program is the last of a list, and there exactly if the session runs one.
        let last = list.len().checked_sub(1).filter(|&i| list.get(i).is_some_and(|e| e.layer == PROGRAM_LAYER));
        let loaded = match last {
            None => self.cores.load(None),
            Some(last) => match self.net.session.memory().blocks.whole(last as u32) {
                Some(program) => self.cores.load(Some(program)),
                None => return,
            },
        };
        self.compute.loaded(last.is_some(), &loaded);
        if let Err(refused) = loaded {
            log::error!("kernels are not run: {refused}");
            self.net.session.log(0, "kernels are not run, for this reason:");
            self.net.session.log(0, &refused.to_string());
        }
    }

    /// Another list: keeps what it has of the blocks that are in memory.
    fn arrange(&mut self) {
        while self.blocks().any_lent() {
            let hashed = self.digests.wait();
            self.settle(hashed);
        }
        self.compute.forget_tables();
        self.rota.restart();
        let list = self.net.session.list();
        let entries: Vec<Entry> = list.map_or(Vec::new(), |l| (0..l.len()).filter_map(|i| l.get(i)).collect());
        let kept = self.blocks_mut().arrange(&entries);
        kept.iter().for_each(|&block| self.net.session.keep_block(block));
        self.net.session.list_ready();
        log::info!("list of {} blocks, of which {} are in memory", entries.len(), kept.len());
        let homeless = self.blocks().homeless();
        if homeless > 0 {
            log::warn!("{homeless} blocks do not fit the memory once they are aligned");
            self.net.session.log(0, "some blocks do not fit once aligned: their lengths should be multiples of 64");
        }
    }

    /// Whether any digest was ready.
    fn take_digests(&mut self) -> bool {
        let mut any = false;
        while let Some(hashed) = self.digests.poll() {
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
                self.scrubbed += 1;
                if self.blocks().digest(block).is_some_and(|right| *right != digest) {
                    log::error!("block {block} has changed in memory: it will be loaded again");
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
