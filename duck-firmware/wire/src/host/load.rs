//! Sending blocks: a window over each, several at once, repeated only where the duck says that something is missing.

use crate::Micros;
use crate::bits::Bits;
use crate::duck::WINDOW;
use crate::frame::{self, Frame, Header, Kind};
use crate::list::{Entry, LIST, List};
use crate::mark::mark;
use crate::message::{BlockCode, Written};

use super::{
    IN_FLIGHT, IN_FLIGHT_CAUTIOUS, LOAD_BURST, LOAD_RETRY_FIRST, LOAD_RETRY_MOST, Memory, Peer, Phase, REORDER, Timer,
};

/// One block on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    active: bool,
    block: u32,
    length: usize,
    chunks: usize,
    /// Chunks that the duck has without a gap; the sets count from here.
    base: usize,
    acked: Bits<{ WINDOW / 64 }>,
    sent: Bits<{ WINDOW / 64 }>,
    /// Sent again since the last time-out, so not a third time for the same reason.
    resent: Bits<{ WINDOW / 64 }>,
    attempt: Option<u16>,
    /// The duck has too many blocks on their way: nothing goes out until the time-out.
    waits: bool,
    /// Complete, yet not heard of for a while: repeat the last chunk, so that the duck says how the block is.
    poke: bool,
}

impl Load {
    pub const EMPTY: Load = Load {
        active: false,
        block: 0,
        length: 0,
        chunks: 0,
        base: 0,
        acked: Bits::EMPTY,
        sent: Bits::EMPTY,
        resent: Bits::EMPTY,
        attempt: None,
        waits: false,
        poke: false,
    };

    fn in_flight(&self) -> usize {
        let mut open = self.sent;
        open.drop_all(&self.acked);
        if self.active { open.len() } else { 0 }
    }

    /// The next chunk to send.
    fn next(&self) -> Option<usize> {
        if !self.active || self.waits {
            return None;
        }
        if self.poke {
            return self.chunks.checked_sub(1);
        }
        let mut done = self.sent;
        done.add(&self.acked);
        let end = WINDOW.min(self.chunks - self.base);
        done.next_absent(0, end).map(|i| self.base + i)
    }

    fn unsend(&mut self) {
        self.sent = self.acked;
        self.resent = Bits::EMPTY;
        (self.waits, self.poke) = (false, self.base == self.chunks);
    }

    /// Takes in what the duck has. Whether that is more than before; `None` when the word is an old one.
    fn acknowledge(&mut self, written: &Written) -> Option<bool> {
        let base = written.base as usize;
        let step = self.attempt.map_or(0, |before| written.attempt.wrapping_sub(before));
        if step >= 1 << 15 || base > self.chunks || step == 0 && base < self.base {
            return None;
        }
        self.attempt = Some(written.attempt);
        if step > 0 {
            (self.base, self.acked, self.sent, self.resent) = (0, Bits::EMPTY, Bits::EMPTY, Bits::EMPTY);
        }
        let forward = base - self.base;
        for set in [&mut self.acked, &mut self.sent, &mut self.resent] {
            set.shift_down(forward);
        }
        self.base = base;
        let before = self.acked.len();
        let there: Bits<{ WINDOW / 64 }> = Bits::read(&written.chunks);
        self.acked.add(&there);
        self.sent.add(&there);
        Some(forward > 0 || self.acked.len() > before || step > 0)
    }

    /// Chunks that later ones have overtaken are sent again, once.
    fn find_lost(&mut self) -> u64 {
        let Some(last) = (0..WINDOW).rev().find(|&i| self.acked.has(i)) else { return 0 };
        let mut found = 0;
        for i in 0..last.saturating_sub(REORDER) {
            if self.sent.has(i) && !self.acked.has(i) && self.resent.insert(i) {
                mark!("an_overtaken_chunk_is_sent_again");
                self.sent.remove(i);
                found += 1;
            }
        }
        found
    }
}

impl<M: Memory> Peer<M> {
    /// There may be something to load.
    pub(super) fn start_load(&mut self, now: Micros) {
        if self.timers[Timer::Load.index()].is_none() {
            self.set(Timer::Load, Some(now + self.load_wait));
        }
    }

    /// Bytes of a block or of the list.
    fn load_length(&self, block: u32) -> usize {
        if block == LIST {
            return self.memory.list().len();
        }
        List(self.memory.list()).get(block as usize).map_or(0, |e: Entry| e.length as usize)
    }

    /// Takes another missing block on, if there is one and a place for it.
    fn next_load(&mut self) -> Option<usize> {
        let free = self.loads.iter().position(|l| !l.active)?;
        let block = if self.phase == Phase::Listing {
            let under_way = self.loads.iter().any(|l| l.active);
            (!under_way).then_some(LIST)?
        } else {
            loop {
                let next = self.residents.next_absent(self.load_cursor, self.blocks as usize);
                // With nothing left, the next look is a short one: this is asked between any two frames of a step.
                self.load_cursor = next.map_or(self.blocks as usize, |next| next + 1);
                let next = next?;
                if !self.loads.iter().any(|l| l.active && l.block == next as u32) {
                    break next as u32;
                }
            }
        };
        let length = self.load_length(block);
        // An empty list is one chunk without bytes, so that the duck can say what it thinks of it.
        let chunks = length.div_ceil(self.limits.load_chunk.into()).max(1);
        self.loads[free] = Load { active: true, block, length, chunks, ..Load::EMPTY };
        Some(free)
    }

    pub(super) fn handle_written(&mut self, now: Micros, frame: Frame<'_>) {
        let Some(written) = Written::parse(frame.payload()) else { return self.stats.frames_bad += 1 };
        let block = frame.seq();
        let Some(load) = self.loads.iter_mut().find(|l| l.active && l.block == block) else { return };
        let progress = match BlockCode::from_code(written.code) {
            Some(BlockCode::Resident) => {
                *load = Load::EMPTY;
                if block == LIST {
                    self.loads = [Load::EMPTY; crate::duck::LOADS];
                    return self.enter(now, Phase::Attaching);
                }
                self.residents.insert(block as usize);
                self.loaded = true;
                true
            }
            Some(BlockCode::Refused) => return self.list_refused(now),
            Some(BlockCode::Busy) => {
                mark!("a_block_that_the_duck_cannot_take_yet_waits");
                load.unsend();
                (load.waits, load.poke) = (true, false);
                false
            }
            Some(BlockCode::Receiving | BlockCode::Checking) => {
                let before = load.attempt;
                let Some(progress) = load.acknowledge(&written) else { return };
                if before.is_some_and(|b| b != written.attempt) {
                    mark!("a_block_with_the_wrong_digest_is_sent_again");
                    self.stats.blocks_wrong += 1;
                }
                self.stats.load_repeats += load.find_lost();
                progress
            }
            None => return self.stats.frames_bad += 1,
        };
        if progress {
            self.in_flight_most = (2 * self.in_flight_most).min(IN_FLIGHT);
            self.load_wait = LOAD_RETRY_FIRST;
            self.set(Timer::Load, Some(now + self.load_wait));
        }
    }

    /// Nothing was acknowledged for a while: what is not known to be there is sent again, a little at first.
    pub(super) fn retry_load(&mut self, now: Micros) {
        let may = matches!(self.phase, Phase::Listing | Phase::Up);
        if may && self.loads.iter().any(|l| l.active) {
            mark!("chunks_without_an_answer_are_sent_again");
            for load in self.loads.iter_mut().filter(|l| l.active) {
                self.stats.load_repeats += load.in_flight() as u64;
                load.unsend();
            }
            self.in_flight_most = IN_FLIGHT_CAUTIOUS;
            self.load_wait = (2 * self.load_wait).min(LOAD_RETRY_MOST);
        }
        if self.loads.iter().any(|l| l.active) {
            self.set(Timer::Load, Some(now + self.load_wait));
        }
    }

    pub(super) fn transmit_load(&mut self, now: Micros, buf: &mut [u8]) -> Option<usize> {
        let may = self.phase == Phase::Listing || self.phase == Phase::Up && self.loading;
        if !may || self.loads.iter().map(Load::in_flight).sum::<usize>() >= self.in_flight_most {
            return None;
        }
        if now < self.load_free {
            self.set(Timer::Rate, Some(self.load_free));
            return None;
        }
        let found = self.loads.iter().position(|l| l.next().is_some());
        let at = found.or_else(|| self.next_load())?;
        let chunk = usize::from(self.limits.load_chunk);
        let load = &mut self.loads[at];
        let index = load.next()?;
        if load.poke {
            load.poke = false;
        } else {
            load.sent.insert(index - load.base);
        }
        let (block, offset) = (load.block, index * chunk);
        let len = chunk.min(load.length - offset);
        self.stats.load_bytes += len as u64;
        if let Some(spent) = (len as u64 * 1_000).checked_div(self.config.load_rate.into()) {
            self.load_free = self.load_free.max(now.saturating_sub(LOAD_BURST)) + spent;
        }
        self.start_load(now);
        let header = Header { seq: block, offset: offset as u32, ..self.header(Kind::Write) };
        frame::emit_with(buf, header, len, self.config.crc, |out| {
            if block == LIST {
                out.copy_from_slice(&self.memory.list()[offset..offset + len]);
            } else {
                self.memory.read_block(block, offset as u32, out);
            }
        })
    }
}
