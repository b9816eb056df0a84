//! From a duck that is somewhere to one that is ready: search, probe, open, list, attach; and what happens when it is lost again.

use crate::duck::STEPS;
use crate::frame::{self, Frame, Header, Kind};
use crate::frozen::Announce;
use crate::limits::{Limits, chunk_for};
use crate::list::Residents;
use crate::mark::mark;
use crate::message::{COUNTERS, Open, OpenCode, Opened, RESIDENT_PAGE, Resident, Status};
use crate::{HEADER, Micros, newer};

use super::load::Load;
use super::plan::Plan;
use super::{
    IN_FLIGHT, LOAD_RETRY_FIRST, Memory, OPEN_TRIES, PING_EVERY, PING_RETRY, PROBE_SIZES, PROBE_TRIES, PROBE_WAIT,
    Peer, Phase, REFUSED_RETRY, RETRY_FIRST, RETRY_MOST, Refusal, SEARCH_MOST, Timer, Why,
};

impl<M: Memory> Peer<M> {
    /// Starts a phase and does its first thing.
    pub(super) fn enter(&mut self, now: Micros, phase: Phase) {
        self.phase = phase;
        self.tries = 0;
        if phase == Phase::Probing {
            self.path = 0;
        }
        if phase == Phase::Opening {
            self.tag = self.tag.wrapping_add(1).max(1);
            self.open = None;
        }
        if phase == Phase::Attaching {
            self.token = self.token.wrapping_add(1).max(1);
            self.arriving = Residents::EMPTY;
            self.page = 0;
        }
        self.set(Timer::Phase, Some(now));
        let pings = matches!(phase, Phase::Listing | Phase::Attaching | Phase::Up);
        self.set(Timer::Ping, pings.then(|| now + self.ping_every()));
        self.retry_phase(now);
    }

    fn ping_every(&self) -> Micros {
        PING_EVERY.min(Micros::from(self.config.lease) * 1_000 / 3).max(1_000)
    }

    /// Does the phase's thing, for the first time or again.
    pub(super) fn retry_phase(&mut self, now: Micros) {
        let again = |tries: u32, first: Micros, most: Micros| (first << tries.min(10)).min(most);
        let tries = self.tries;
        self.tries += 1;
        let wait = match self.phase {
            Phase::Lost => {
                self.pending.discover = true;
                again(tries, RETRY_MOST, SEARCH_MOST)
            }
            Phase::Probing if tries == PROBE_TRIES => return self.finish_probing(now),
            Phase::Probing => {
                for (i, size) in PROBE_SIZES.into_iter().enumerate() {
                    if size <= self.config.max_frame && size > self.path {
                        self.pending.probes |= 1 << i;
                    }
                }
                PROBE_WAIT
            }
            Phase::Opening if tries == OPEN_TRIES => {
                mark!("unanswered_opens_end_in_a_new_search");
                return self.enter(now, Phase::Lost);
            }
            Phase::Opening => {
                self.pending.open = true;
                again(tries, RETRY_FIRST, RETRY_MOST)
            }
            Phase::Attaching => {
                self.pending.residents = true;
                again(tries, RETRY_FIRST, RETRY_MOST)
            }
            Phase::Silent => {
                self.ask_status();
                again(tries, PING_RETRY, SEARCH_MOST)
            }
            Phase::Listing => return self.start_load(now),
            Phase::Up => return,
        };
        self.set(Timer::Phase, Some(now + wait));
    }

    pub(super) fn handle_announce(&mut self, now: Micros, frame: Frame<'_>) {
        let announce = Announce::parse(frame.payload()).filter(|a| a.id == self.config.duck);
        let Some(announce) = announce else { return self.stats.frames_bad += 1 };
        if self.announce.is_some_and(|before| before.boot != announce.boot) {
            self.reset = None;
        }
        self.announce = Some(announce);
        if !matches!(self.phase, Phase::Probing | Phase::Opening) {
            self.nonce = announce.nonce;
        }
        let known = announce.boot == self.boot && announce.epoch == self.config.epoch;
        match self.phase {
            Phase::Lost if self.refused_pause(now) => {}
            Phase::Lost => self.enter(now, Phase::Probing),
            Phase::Probing | Phase::Opening => {}
            Phase::Silent => self.ask_status_soon(now),
            // Late or duplicated ones say the same as a restarted duck's: only an answer to a new question decides.
            Phase::Listing | Phase::Attaching | Phase::Up if !known => self.ask_status_soon(now),
            Phase::Listing | Phase::Attaching | Phase::Up => self.heard(),
        }
    }

    /// Whether the duck refused a moment ago.
    fn refused_pause(&self, now: Micros) -> bool {
        self.tries == 0 && self.timers[Timer::Phase.index()].is_some_and(|at| at > now)
    }

    fn refuse(&mut self, now: Micros, refusal: Refusal, pause: Micros) {
        self.refused = Some(refusal);
        self.enter(now, Phase::Lost);
        self.pending.discover = false;
        self.tries = 0;
        self.set(Timer::Phase, Some(now + pause.clamp(RETRY_FIRST, REFUSED_RETRY)));
    }

    pub(super) fn handle_probed(&mut self, now: Micros, frame: Frame<'_>) {
        if self.phase != Phase::Probing || frame.seq() != self.token {
            return;
        }
        let size = HEADER + frame.payload().len();
        if PROBE_SIZES.contains(&size) {
            self.path = self.path.max(size);
        }
        let largest = PROBE_SIZES.into_iter().filter(|&s| s <= self.config.max_frame).max();
        if Some(self.path) == largest {
            self.finish_probing(now);
        }
    }

    fn finish_probing(&mut self, now: Micros) {
        let expected = HEADER + usize::from(self.config.limits.step_chunk);
        if self.path < expected {
            mark!("a_path_too_narrow_is_refused");
            let pause = if self.path == 0 { RETRY_MOST } else { REFUSED_RETRY };
            return self.refuse(now, Refusal::Path { found: self.path, expected }, pause);
        }
        let most = chunk_for(self.path.min(self.config.max_frame)) as u16;
        self.limits = Limits { load_chunk: self.config.limits.load_chunk.min(most), ..self.config.limits };
        self.enter(now, Phase::Opening);
    }

    /// The open to send, signed anew only when something in it changes.
    fn signed_open(&mut self) -> Open {
        if let Some((open, _)) = self.open {
            return open;
        }
        let (config, limits) = (&self.config, &self.limits);
        let open = Open {
            nonce: self.nonce,
            id: config.duck,
            host: config.host,
            key: [0; 8],
            epoch: config.epoch,
            lease: config.lease,
            kernels: config.kernels,
            root: self.root,
            blocks: self.blocks,
            hidden: limits.hidden,
            layers: limits.layers,
            slices: limits.slices,
            experts: limits.experts,
            chosen: limits.chosen,
            lanes: limits.lanes,
            nodes: limits.nodes,
            mode: limits.mode as u8,
            format: limits.format,
            step_chunk: limits.step_chunk,
            load_chunk: limits.load_chunk,
            tag: self.tag,
            kernels_signature: config.kernels_signature,
            signature: [0; 64],
        }
        .sign(&config.key);
        self.open = Some((open, *blake3::hash(&open.emit()).as_bytes()));
        open
    }

    pub(super) fn handle_opened(&mut self, now: Micros, frame: Frame<'_>) {
        let Some(opened) = Opened::parse(frame.payload()) else { return self.stats.frames_bad += 1 };
        let ours = self.open.is_some_and(|(_, hash)| hash == opened.answers);
        if self.phase != Phase::Opening || !ours {
            return;
        }
        self.nonce = opened.nonce;
        let left = opened.lease;
        match OpenCode::from_code(opened.code) {
            Some(OpenCode::Accepted) => self.opened(now, &opened),
            Some(OpenCode::StaleNonce) => {
                mark!("a_stale_nonce_is_replaced_at_once");
                self.open = None;
                self.pending.open = true;
            }
            Some(OpenCode::Leased) => self.refuse(now, Refusal::Leased { left }, Micros::from(left) * 1_000),
            Some(OpenCode::BadSignature) => self.refuse(now, Refusal::BadSignature, REFUSED_RETRY),
            Some(OpenCode::Limits) => self.refuse(now, Refusal::Limits, REFUSED_RETRY),
            Some(OpenCode::Kernels) => self.refuse(now, Refusal::Kernels, REFUSED_RETRY),
            None => self.stats.frames_bad += 1,
        }
    }

    fn opened(&mut self, now: Micros, opened: &Opened) {
        self.boot = opened.boot;
        self.open = None;
        self.token = self.token.wrapping_add(1).max(1);
        self.token_floor = self.token;
        self.losses = None;
        self.log_seq = None;
        self.residents = Residents::EMPTY;
        self.loads = [Load::EMPTY; crate::duck::LOADS];
        self.load_wait = LOAD_RETRY_FIRST;
        self.in_flight_most = IN_FLIGHT;
        self.heard();
        if opened.listed == 1 {
            mark!("a_known_list_is_not_sent_again");
        }
        self.enter(now, if opened.listed == 1 { Phase::Attaching } else { Phase::Listing });
    }

    pub(super) fn handle_resident(&mut self, now: Micros, frame: Frame<'_>) {
        let Some(page) = Resident::parse(frame.payload()) else { return self.stats.frames_bad += 1 };
        let expected = self.phase == Phase::Attaching && frame.seq() == self.token && page.first == self.page;
        if !expected || page.blocks != self.blocks {
            return;
        }
        if page.first == 0 {
            self.losses = Some(page.losses);
        }
        let bits = &frame.payload()[Resident::LEN..];
        for (i, byte) in bits.iter().enumerate().take(RESIDENT_PAGE) {
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                let block = page.first as usize + 8 * i + bit;
                if block < self.blocks as usize {
                    self.arriving.insert(block);
                }
            }
        }
        self.page = page.first.saturating_add(8 * bits.len().min(RESIDENT_PAGE) as u32);
        self.tries = 0;
        if self.page < self.blocks && !bits.is_empty() {
            return self.retry_phase(now);
        }
        self.come_up(now);
    }

    /// The duck has said all that it holds.
    fn come_up(&mut self, now: Micros) {
        self.residents = self.arriving;
        self.load_cursor = 0;
        self.loaded = true;
        if self.up.is_none() {
            self.ups += 1;
            self.up = Some(self.ups);
            self.plans = [Plan::EMPTY; crate::duck::PLANS];
        }
        self.enter(now, Phase::Up);
        self.start_load(now);
    }

    /// The session, or the duck, is lost; steps under way with it.
    pub(super) fn go_down(&mut self, now: Micros, why: Why, next: Phase) {
        if self.up.take().is_some() {
            self.why = why;
            self.stats.losses += 1;
        }
        for slot in 0..STEPS {
            self.steps[slot].abandon();
            self.set(Timer::Step(slot), None);
        }
        self.set(Timer::Load, None);
        self.set(Timer::Rate, None);
        self.plans = [Plan::EMPTY; crate::duck::PLANS];
        self.unanswered = 0;
        self.enter(now, next);
    }

    /// The list is not one to this duck, though it is the signed one.
    pub(super) fn list_refused(&mut self, now: Micros) {
        self.go_down(now, Why::List, Phase::Lost);
        self.refuse(now, Refusal::List, REFUSED_RETRY);
    }

    fn ask_status(&mut self) {
        self.token = self.token.wrapping_add(1).max(1);
        self.pending.status = true;
    }

    /// Asks, unless a question is on its way; an answer that is lost is asked for by timer.
    pub(super) fn ask_status_soon(&mut self, now: Micros) {
        if self.pending.status {
            return;
        }
        match self.phase {
            Phase::Silent => self.ask_status(),
            // The token also numbers the question of what is resident.
            Phase::Attaching => {}
            _ => self.ping(now),
        }
    }

    /// Asks after the duck's health.
    pub(super) fn ping(&mut self, now: Micros) {
        if self.phase == Phase::Attaching {
            self.pending.status = true;
        } else {
            self.ask_status();
        }
        self.repeat_plans();
        let wait = if self.unanswered > 0 || self.awaits_plans() { PING_RETRY } else { self.ping_every() };
        self.set(Timer::Ping, Some(now + wait));
        self.asked(now);
    }

    pub(super) fn handle_status(&mut self, now: Micros, frame: Frame<'_>) {
        let Some(status) = Status::parse(frame.payload()) else { return self.stats.frames_bad += 1 };
        let ours = (frame.epoch(), frame.tag(), status.boot) == (self.config.epoch, self.tag, self.boot);
        let open = matches!(self.phase, Phase::Listing | Phase::Attaching | Phase::Up | Phase::Silent);
        let fresh = frame.seq() == self.token && !newer(self.token_floor, frame.seq());
        if !open || !(fresh || ours) {
            return;
        }
        if !ours {
            mark!("a_duck_without_the_session_has_restarted");
            self.nonce = [0; crate::frozen::NONCE];
            return self.go_down(now, Why::Restarted, Phase::Probing);
        }
        self.heard();
        let mut counters = [0; COUNTERS];
        for (value, raw) in counters.iter_mut().zip(frame.payload()[Status::LEN..].as_chunks::<8>().0) {
            *value = u64::from_le_bytes(*raw);
        }
        self.status = Some((status, counters));
        self.fresh_status = true;
        let lost = self.losses.is_some_and(|l| newer(status.losses, l));
        if self.phase == Phase::Silent && fresh {
            mark!("a_silent_duck_that_kept_its_session_rejoins");
            self.enter(now, if status.listed == 1 { Phase::Attaching } else { Phase::Listing });
        } else if self.phase == Phase::Up && lost {
            mark!("lost_blocks_are_looked_up");
            self.enter(now, Phase::Attaching);
        }
    }

    pub(super) fn transmit_attach(&mut self, buf: &mut [u8]) -> Option<usize> {
        let crc = self.config.crc;
        if core::mem::take(&mut self.pending.reset)
            && let Some((action, _)) = self.reset
        {
            return self.transmit_reset(action, buf);
        }
        if core::mem::take(&mut self.pending.discover) {
            return frame::emit(buf, Header::new(Kind::Discover), &[], crc);
        }
        if self.pending.probes != 0 {
            let i = self.pending.probes.trailing_zeros() as usize;
            self.pending.probes &= self.pending.probes - 1;
            let header = Header { seq: self.token, ..Header::new(Kind::Probe) };
            return frame::emit_with(buf, header, PROBE_SIZES[i] - HEADER, crc, |p| p.fill(0));
        }
        if core::mem::take(&mut self.pending.open) && self.phase == Phase::Opening {
            self.stats.opens += 1;
            let open = self.signed_open();
            return frame::emit(buf, self.header(Kind::Open), &[&open.emit()], crc);
        }
        if core::mem::take(&mut self.pending.residents) && self.phase == Phase::Attaching {
            let header = Header { seq: self.token, offset: self.page, ..self.header(Kind::AskResident) };
            return frame::emit(buf, header, &[], crc);
        }
        if core::mem::take(&mut self.pending.status) {
            let header = Header { seq: self.token, ..self.header(Kind::AskStatus) };
            return frame::emit(buf, header, &[], crc);
        }
        None
    }
}
