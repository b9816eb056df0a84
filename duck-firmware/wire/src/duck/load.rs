//! Blocks on their way in. A chunk's place is absolute, so order and repetition do not matter; nothing is resident before its digest is right.

use crate::Micros;
use crate::bits::Bits;
use crate::frame::{self, Frame, Header, Kind};
use crate::list::{Entry, LIST, PROGRAM_LAYER};
use crate::mark::mark;
use crate::message::{BlockCode, Counter, Written};

use super::{ACK_DELAY, ACK_EVERY, Event, LOAD_IDLE, Listing, Live, Memory, Session, Timer, WINDOW};

/// One block that is arriving.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    active: bool,
    block: u32,
    length: usize,
    chunks: usize,
    /// Chunks without a gap; chunk `base + i` is there if `ahead` has i.
    base: usize,
    ahead: Bits<{ WINDOW / 64 }>,
    attempt: u16,
    code: BlockCode,
    ticket: u32,
    told: bool,
    ack: bool,
    unacknowledged: u16,
    /// Written to since the session was opened: else another block may take its place.
    fresh: bool,
    /// When it was written to last.
    touched: Micros,
}

impl Load {
    pub const EMPTY: Load = Load {
        active: false,
        block: 0,
        length: 0,
        chunks: 0,
        base: 0,
        ahead: Bits::EMPTY,
        attempt: 0,
        code: BlockCode::Receiving,
        ticket: 0,
        told: false,
        ack: false,
        unacknowledged: 0,
        fresh: false,
        touched: 0,
    };

    pub fn reopen(&mut self) {
        self.fresh = false;
        self.ack = false;
        self.unacknowledged = 0;
    }

    pub fn acknowledge(&mut self) {
        self.ack |= self.active && self.unacknowledged > 0;
    }

    fn restart(&mut self, attempt: u16) {
        self.base = 0;
        self.ahead = Bits::EMPTY;
        self.attempt = attempt;
        self.code = BlockCode::Receiving;
        self.ack = true;
    }
}

impl<M: Memory> Session<M> {
    pub(super) fn handle_write(&mut self, now: Micros, live: &Live, frame: Frame<'_>) {
        let block = frame.seq();
        let length = match self.expected(live, block) {
            Ok(length) => length,
            Err(code) => return self.replies.written = Some((block, code)),
        };
        let Some(at) = self.load_slot(now, live, block, length) else {
            mark!("a_block_too_many_waits");
            return self.replies.written = Some((block, BlockCode::Busy));
        };
        let (chunk, offset) = (usize::from(live.limits.load_chunk), frame.offset() as usize);
        let load = &mut self.loads[at];
        (load.fresh, load.touched) = (true, now);
        if load.code != BlockCode::Receiving {
            load.ack = true;
            return;
        }
        let (index, payload) = (offset / chunk, frame.payload());
        let whole =
            offset.is_multiple_of(chunk) && index < load.chunks && payload.len() == chunk.min(load.length - offset);
        if !whole {
            return self.count(Counter::FramesBad);
        }
        let ahead = index.checked_sub(load.base).filter(|&a| a < WINDOW);
        let Some(ahead) = ahead.filter(|&a| load.ahead.insert(a)) else {
            mark!("a_repeated_chunk_is_acknowledged_at_once");
            load.ack = true;
            return;
        };
        if block == LIST {
            self.memory.list_mut()[offset..offset + payload.len()].copy_from_slice(payload);
        } else {
            self.memory.write_block(block, frame.offset(), payload);
        }
        load.unacknowledged += 1;
        // A gap, or one filled, is told at once; else chunks are counted.
        load.ack |= ahead > 0 || load.unacknowledged >= ACK_EVERY;
        let run = load.ahead.next_absent(0, WINDOW).unwrap_or(WINDOW);
        load.ahead.shift_down(run);
        load.base += run;
        if load.base == load.chunks {
            load.code = BlockCode::Checking;
            load.ack = true;
            self.tickets = self.tickets.wrapping_add(1);
            (load.ticket, load.told) = (self.tickets, false);
        }
        if block == LIST && load.code == BlockCode::Checking {
            return self.check_list(at);
        }
        if self.timers[Timer::Ack as usize].is_none() {
            self.set(Timer::Ack, Some(now + ACK_DELAY));
        }
    }

    /// Bytes of a block that may be written now, or what to say instead.
    fn expected(&self, live: &Live, block: u32) -> Result<usize, BlockCode> {
        if block == LIST {
            return match self.listing {
                Listing::Receiving => Ok(live.blocks as usize * Entry::LEN),
                Listing::Matching | Listing::Ready => Err(BlockCode::Resident),
                Listing::Refused => Err(BlockCode::Refused),
            };
        }
        if self.listing != Listing::Ready || self.steps.iter().any(|s| s.is_orphan()) {
            mark!("blocks_wait_for_list_and_orphaned_steps");
            return Err(BlockCode::Busy);
        }
        match self.list_bytes().get(block as usize) {
            None => Err(BlockCode::Refused),
            Some(_) if self.residents.has(block as usize) => Err(BlockCode::Resident),
            Some(entry) => Ok(entry.length as usize),
        }
    }

    /// The block's place among those under way, or one that it may have.
    fn load_slot(&mut self, now: Micros, live: &Live, block: u32, length: usize) -> Option<usize> {
        if let Some(at) = self.loads.iter().position(|l| l.active && l.block == block) {
            return Some(at);
        }
        let idle = |l: &Load| !l.fresh || now.saturating_sub(l.touched) >= LOAD_IDLE;
        let stale = |l: &Load| l.code == BlockCode::Receiving && idle(l);
        let free = self.loads.iter().position(|l| !l.active).or_else(|| self.loads.iter().position(stale))?;
        let chunks = length.div_ceil(live.limits.load_chunk.into());
        self.attempts = self.attempts.wrapping_add(1);
        self.loads[free] = Load { active: true, block, length, chunks, attempt: self.attempts, ..Load::EMPTY };
        Some(free)
    }

    fn restart_load(&mut self, at: usize) {
        self.attempts = self.attempts.wrapping_add(1);
        self.loads[at].restart(self.attempts);
    }

    /// All of the list is there.
    fn check_list(&mut self, at: usize) {
        let right = self.live.is_some_and(|l| self.list_bytes().root() == l.root);
        if !right {
            mark!("planted_list_is_refused");
            self.count(Counter::BlocksWrong);
            return self.restart_load(at);
        }
        self.loads[at].code = BlockCode::Resident;
        self.finish_list();
        if self.listing == Listing::Refused {
            self.loads[at].code = BlockCode::Refused;
        }
    }

    /// The list has the signed root: is it one that this duck can hold?
    pub(super) fn finish_list(&mut self) {
        let Some(live) = self.live else { return };
        let list = self.list_bytes();
        let bytes = (0..list.len()).filter_map(|i| list.get(i)).map(|e| u64::from(e.length)).sum::<u64>();
        if list.root() != live.root
            || list.check(&live.limits, live.program).is_err()
            || bytes > self.memory.sizes().blocks
        {
            mark!("impossible_list_is_refused");
            self.listing = Listing::Refused;
            return;
        }
        self.listing = Listing::Matching;
        self.told.listed = true;
    }

    /// After [`Event::Listed`]: block `index` of the new list is in memory, with the digest that the list states.
    pub fn keep_block(&mut self, index: u32) {
        if self.listing == Listing::Matching
            && (index as usize) < self.list_bytes().len()
            && self.residents.insert(index as usize)
        {
            self.resident += 1;
        }
    }

    /// After [`Event::Listed`]: all that is held was told by [`Session::keep_block`].
    pub fn list_ready(&mut self) {
        if self.listing == Listing::Matching {
            self.listing = Listing::Ready;
        }
    }

    pub(super) fn next_filled(&mut self) -> Option<Event> {
        let load = self.loads.iter_mut().find(|l| l.active && l.code == BlockCode::Checking && !l.told)?;
        load.told = true;
        Some(Event::Filled { ticket: load.ticket, block: load.block })
    }

    /// The answer to [`Event::Filled`]. Returns whether the block is now held. A ticket of an earlier session is ignored.
    pub fn block_hashed(&mut self, ticket: u32, block: u32, digest: &[u8; 32]) -> bool {
        let Some(live) = self.live else { return false };
        let waiting = |l: &Load| l.active && l.code == BlockCode::Checking && (l.block, l.ticket) == (block, ticket);
        let Some(at) = self.loads.iter().position(waiting) else { return false };
        let Some(entry) = self.list_bytes().get(block as usize) else { return false };
        if entry.digest != *digest {
            mark!("block_with_the_wrong_digest_starts_again");
            self.count(Counter::BlocksWrong);
            self.restart_load(at);
            return false;
        }
        self.loads[at].code = BlockCode::Resident;
        self.loads[at].ack = true;
        if self.residents.insert(block as usize) {
            self.resident += 1;
            self.count(Counter::BlocksLoaded);
            self.plans_note(&live, entry, true);
        }
        true
    }

    /// A later check found that a held block's bytes have changed: it is no longer held, and the host is told.
    pub fn block_damaged(&mut self, block: u32) {
        let (Some(live), Some(entry)) = (self.live, self.list_bytes().get(block as usize)) else { return };
        if !self.residents.has(block as usize) || entry.layer == PROGRAM_LAYER && live.program.is_none() {
            return;
        }
        mark!("damaged_block_is_reported");
        self.residents.remove(block as usize);
        self.resident -= 1;
        self.losses = self.losses.wrapping_add(1);
        self.count(Counter::BlocksLost);
        self.plans_note(&live, entry, false);
        self.replies.status = Some((live.host, 0));
    }

    pub(super) fn transmit_load(&mut self, buf: &mut [u8]) -> Option<usize> {
        let crc = self.config.crc;
        if let Some((seq, code)) = self.replies.written.take() {
            let written = Written { base: 0, code: code as u8, reserved: 0, attempt: 0, chunks: [0; 32] };
            return frame::emit(buf, Header { seq, ..self.header(Kind::Written) }, &[&written.emit()], crc);
        }
        let at = self.loads.iter().position(|l| l.active && l.ack)?;
        let header = Header { seq: self.loads[at].block, ..self.header(Kind::Written) };
        let load = &mut self.loads[at];
        (load.ack, load.unacknowledged) = (false, 0);
        // Once told, an answer to a repeated chunk follows from the set of residents.
        load.active = !matches!(load.code, BlockCode::Resident | BlockCode::Refused);
        let mut written = Written {
            base: u32::try_from(load.base).unwrap_or(u32::MAX),
            code: load.code as u8,
            reserved: 0,
            attempt: load.attempt,
            chunks: [0; 32],
        };
        load.ahead.write(&mut written.chunks);
        frame::emit(buf, header, &[&written.emit()], crc)
    }
}
