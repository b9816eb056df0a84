//! Being found, opened and reset: what works without a session, and what only the pond's key can do.

use crate::Micros;
use crate::frame::{Frame, MIN_MTU};
use crate::frozen::{Announce, Reset};
use crate::limits::Limits;
use crate::list::{Entry, MAX_BLOCKS, Residents};
use crate::mark::mark;
use crate::message::{Counter, Open, OpenCode, Opened};

use super::load::Load;
use super::plan::Plan;
use super::step::Step;
use super::{ANNOUNCE_GAP, Address, Listing, Live, Memory, PLANS, Replies, Session, Timer, To, VERIFY_GAP};

impl<M: Memory> Session<M> {
    /// Another nonce: nobody can tell it from the ones before without the seed.
    pub(super) fn draw_nonce(&mut self) {
        let hash = blake3::keyed_hash(&self.config.seed, &self.drawn.to_le_bytes());
        self.drawn += 1;
        self.nonce = *hash.as_bytes().first_chunk().expect("a digest has 32 bytes");
    }

    pub(super) fn announcement(&self, now: Micros) -> Announce {
        Announce {
            protocol: crate::frame::VERSION,
            nonce: self.nonce,
            epoch: self.live.map_or(0, |l| l.epoch),
            resident: self.resident,
            root: self.live.map_or([0; 32], |l| l.root),
            lease: self.lease_left(now),
            uptime: self.uptime(now),
            ..self.config.announce
        }
    }

    /// Answers one asker, not more often than [`ANNOUNCE_GAP`].
    pub(super) fn announce_to(&mut self, now: Micros, to: Address) {
        if now >= self.announced {
            self.announced = now + ANNOUNCE_GAP;
            self.replies.announce = Some(To::One(to));
        }
    }

    pub(super) fn handle_probe(&mut self, from: Address, frame: Frame<'_>) {
        let len = crate::HEADER + frame.payload().len();
        if len > self.config.max_frame.max(MIN_MTU) {
            return;
        }
        if let Some(free) = self.replies.probes.iter_mut().find(|p| p.is_none()) {
            *free = Some((from, frame.seq(), len));
        }
    }

    /// Whether a signature may be checked now.
    fn may_verify(&mut self, now: Micros) -> bool {
        if now < self.verify_after {
            mark!("signatures_are_checked_at_a_bounded_rate");
            return false;
        }
        self.verify_after = now + VERIFY_GAP;
        true
    }

    pub(super) fn handle_reset(&mut self, now: Micros, frame: Frame<'_>) {
        let Some(reset) = Reset::parse(frame.payload()) else { return self.count(Counter::FramesBad) };
        if reset.id != self.config.announce.id {
            return;
        }
        if reset.nonce != self.nonce {
            mark!("reset_with_a_stale_nonce_is_refused");
            return self.count(Counter::ControlRefused);
        }
        if !self.may_verify(now) {
            return;
        }
        if !reset.verify(&self.config.key) {
            mark!("forged_reset_is_refused");
            return self.count(Counter::ControlRefused);
        }
        self.draw_nonce();
        self.told.reset = Some(reset.action);
    }

    pub(super) fn handle_open(&mut self, now: Micros, from: Address, frame: Frame<'_>) {
        let Some(open) = Open::parse(frame.payload()) else { return self.count(Counter::FramesBad) };
        if open.id != self.config.announce.id {
            return;
        }
        let hash = *blake3::hash(&open.emit()).as_bytes();
        if self.accepted == Some(hash) && self.live.is_some_and(|l| l.host == from) {
            mark!("repeated_open_is_answered_again");
            return self.reply_opened(now, from, hash, OpenCode::Accepted);
        }
        if open.nonce != self.nonce {
            mark!("open_with_a_stale_nonce_is_refused");
            self.count(Counter::ControlRefused);
            return self.reply_opened(now, from, hash, OpenCode::StaleNonce);
        }
        if !self.may_verify(now) {
            return;
        }
        if !open.verify(&self.config.key) {
            mark!("forged_open_is_refused");
            self.count(Counter::ControlRefused);
            return self.reply_opened(now, from, hash, OpenCode::BadSignature);
        }
        // Spent whatever comes next, else a refused open could be replayed when the reason has passed.
        self.draw_nonce();
        let code = match self.admit(now, &open) {
            Ok((limits, program)) => {
                self.accept(now, from, &open, limits, program);
                self.accepted = Some(hash);
                OpenCode::Accepted
            }
            Err(code) => {
                self.count(Counter::ControlRefused);
                code
            }
        };
        self.reply_opened(now, from, hash, code);
    }

    /// Whether a well-signed open can be granted.
    fn admit(&self, now: Micros, open: &Open) -> Result<(Limits, Option<[u8; 32]>), OpenCode> {
        let held = self.timers[Timer::Lease as usize].is_some_and(|until| now < until);
        if held && self.live.is_some_and(|l| l.host_id != open.host || l.key_id != open.key) {
            mark!("second_host_is_refused_by_lease");
            return Err(OpenCode::Leased);
        }
        let limits = open.limits().ok_or(OpenCode::Limits)?;
        let sizes = self.memory.sizes();
        let longest = crate::HEADER + usize::from(limits.step_chunk.max(limits.load_chunk));
        let fits = limits.check().is_ok()
            && open.epoch != 0
            && open.tag != 0
            && open.blocks as usize <= MAX_BLOCKS
            && open.blocks as usize * Entry::LEN <= sizes.list
            && limits.input_len() <= sizes.input
            && limits.result_len() <= sizes.result
            && longest <= self.config.max_frame;
        if !fits {
            return Err(OpenCode::Limits);
        }
        if open.kernels == self.config.kernels {
            return Ok((limits, None));
        }
        if !self.config.key.verify(crate::key::Domain::Program, &open.kernels, &open.kernels_signature) {
            mark!("unsigned_kernels_are_refused");
            return Err(OpenCode::Kernels);
        }
        Ok((limits, Some(open.kernels)))
    }

    fn accept(&mut self, now: Micros, from: Address, open: &Open, limits: Limits, program: Option<[u8; 32]>) {
        let tree = |l: &Limits| (l.layers, l.slices, l.experts);
        let same_list = self.live.is_some_and(|l| {
            l.root == open.root && l.blocks == open.blocks && l.program == program && tree(&l.limits) == tree(&limits)
        });
        let same_chunks = self.live.is_some_and(|l| l.limits.load_chunk == limits.load_chunk);
        if !same_list {
            self.residents = Residents::EMPTY;
            self.resident = 0;
            self.listing = Listing::Receiving;
            self.told.listed = false;
        }
        if !same_list || !same_chunks {
            self.loads = [Load::EMPTY; super::LOADS];
        }
        self.loads.iter_mut().for_each(Load::reopen);
        self.plans = [Plan::EMPTY; PLANS];
        self.steps.iter_mut().for_each(Step::orphan);
        self.replies = Replies { announce: self.replies.announce, probes: self.replies.probes, ..Replies::default() };
        self.live = Some(Live {
            epoch: open.epoch,
            tag: open.tag,
            limits,
            root: open.root,
            blocks: open.blocks,
            program,
            host_id: open.host,
            key_id: open.key,
            host: from,
            lease: Micros::from(open.lease) * 1_000,
        });
        self.told.opened = Some(same_list && self.told.opened.unwrap_or(true));
        if open.blocks == 0 && self.listing == Listing::Receiving {
            self.finish_list();
        }
        self.renew(now);
    }

    /// The lease's holder was heard of.
    pub(super) fn renew(&mut self, now: Micros) {
        let Some(live) = self.live else { return };
        self.set(Timer::Lease, Some(now + live.lease));
        self.set(Timer::Announce, None);
    }

    fn reply_opened(&mut self, now: Micros, to: Address, answers: [u8; 32], code: OpenCode) {
        let opened = Opened {
            code: code as u8,
            listed: u8::from(matches!(self.listing, Listing::Matching | Listing::Ready) && self.live.is_some()),
            reserved: 0,
            lease: self.lease_left(now),
            nonce: self.nonce,
            epoch: self.live.map_or(0, |l| l.epoch),
            resident: self.resident,
            boot: self.config.announce.boot,
            answers,
        };
        self.replies.opened = Some((to, opened));
    }
}
