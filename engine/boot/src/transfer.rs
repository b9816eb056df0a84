//! Files on their way: what each client has, what is sent next, and when it is sent again.
//!
//! The server sends again, not the client: an acknowledgement that comes twice is ignored, so that a delayed one never doubles all that
//! follows it. A window (RFC 7440) is sent again from the first block that was not acknowledged.

use std::sync::Arc;
use std::time::Duration;

use crate::event::{Client, Event, Events, Running, percent};
use crate::frame::{self, Own, Peer};
use crate::service::Tx;
use crate::tftp::{BLOCK, HEADER, Options, emit_block};

/// Transfers at once, of all clients and of one.
const ALL: usize = 256;
const EACH: usize = 4;
/// Time until something is sent again at first, and at most: it doubles.
const WAIT: Duration = Duration::from_millis(400);
const WAIT_MOST: Duration = Duration::from_secs(4);
/// How often something is sent again before the client counts as gone.
const TRIES: u32 = 8;
/// The first of the ports that answers come from; each transfer has its own.
const FIRST_PORT: u16 = 49_152;
/// Bytes of a client's words that are repeated.
const WORDS: usize = 100;

/// A file on its way to a client.
struct Transfer {
    peer: Peer,
    ports: [u16; 2],
    client: Client,
    file: Arc<str>,
    bytes: Arc<[u8]>,
    block: usize,
    window: u64,
    /// What was agreed to and has yet to be acknowledged; no block is sent before that.
    agreed: Option<Vec<u8>>,
    agreed_sent: bool,
    /// Blocks that have arrived, and that were sent.
    arrived: u64,
    sent: u64,
    fixed_wait: Option<Duration>,
    wait: Duration,
    again_at: Duration,
    tries: u32,
    begun: Duration,
}

impl Transfer {
    /// Blocks of the whole file: the last one is shorter than all others, and may be empty.
    fn blocks(&self) -> u64 {
        (self.bytes.len() / self.block) as u64 + 1
    }

    fn arrived_bytes(&self) -> usize {
        (self.arrived as usize).saturating_mul(self.block).min(self.bytes.len())
    }

    /// Whether there is something that nothing has to be waited for.
    fn is_due(&self) -> bool {
        match self.agreed {
            Some(_) => !self.agreed_sent,
            None => self.sent < self.blocks().min(self.arrived + self.window),
        }
    }

    /// Something has come: the time until something is sent again starts anew.
    fn refresh(&mut self, now: Duration) {
        self.tries = 0;
        self.wait = self.fixed_wait.unwrap_or(WAIT);
        self.again_at = now + self.wait;
    }

    /// Takes an acknowledgement. Returns whether the file has arrived whole.
    fn acknowledge(&mut self, now: Duration, number: u16, events: &mut Events) -> bool {
        if self.agreed.is_some() {
            if number == 0 && self.agreed_sent {
                self.agreed = None;
                self.refresh(now);
            }
            return false;
        }
        // Numbers go round after 65535; what is further ahead than what was sent is something old.
        let ahead = u64::from(number.wrapping_sub(self.arrived as u16));
        if ahead == 0 || ahead > self.sent - self.arrived {
            return false;
        }
        if self.arrived == 0 {
            let (client, file, bytes) = (self.client.clone(), self.file.clone(), self.bytes.len());
            events.push(Event::Fetching { client, file, bytes });
        }
        self.arrived += ahead;
        self.sent = self.arrived;
        self.refresh(now);
        self.arrived == self.blocks()
    }

    /// What is to be sent again, if it is time. Returns whether the client counts as gone.
    fn look(&mut self, now: Duration) -> bool {
        if now < self.again_at {
            return false;
        }
        self.tries += 1;
        self.agreed_sent = false;
        self.sent = self.arrived;
        self.wait = self.fixed_wait.unwrap_or((self.wait * 2).min(WAIT_MOST));
        self.again_at = now + self.wait;
        self.tries > TRIES
    }

    /// Sends one packet, if one is due.
    fn send(&mut self, own: &Own, tx: &mut Tx<'_>) -> bool {
        if !self.is_due() {
            return false;
        }
        let (ports, peer) = (self.ports, self.peer);
        let mut packet = |length, fill: &dyn Fn(&mut [u8])| {
            tx(frame::datagram_length(length), &mut |bytes| {
                frame::emit_datagram(bytes, own, ports, peer, length, fill);
            });
        };
        match &self.agreed {
            Some(agreed) => {
                packet(agreed.len(), &|bytes| bytes.copy_from_slice(agreed));
                self.agreed_sent = true;
            }
            None => {
                let start = self.sent as usize * self.block;
                let data = &self.bytes[start..self.bytes.len().min(start + self.block)];
                let number = (self.sent + 1) as u16;
                packet(HEADER + data.len(), &|bytes| emit_block(bytes, number, data));
                self.sent += 1;
            }
        }
        true
    }

    fn fail(self, why: String, events: &mut Events) {
        // A client that only wanted to know the size stops before the first block.
        if self.arrived > 0 || self.agreed.is_none() {
            let percent = percent(self.arrived_bytes(), self.bytes.len());
            events.push(Event::Failed { client: self.client, file: self.file, percent, why });
        }
    }
}

/// What a client asks for.
pub(crate) struct Wanted {
    pub peer: Peer,
    pub port: u16,
    pub client: Client,
    pub file: Arc<str>,
    pub bytes: Arc<[u8]>,
    /// As agreed.
    pub options: Options,
}

/// All transfers, in memory that never grows beyond their number.
pub(crate) struct Transfers {
    all: Vec<Transfer>,
    next_port: u16,
    /// Who sends next.
    turn: usize,
}

impl Transfers {
    pub fn new() -> Transfers {
        Transfers { all: Vec::with_capacity(ALL), next_port: FIRST_PORT, turn: 0 }
    }

    /// Begins a transfer, in place of one that the same port of the client's began. `false` if there are too many.
    pub fn begin(&mut self, now: Duration, wanted: Wanted) -> bool {
        self.all.retain(|t| t.peer != wanted.peer || t.ports[1] != wanted.port);
        // A client that starts over forgets its old transfers without a word.
        if self.all.iter().filter(|t| t.peer.mac == wanted.peer.mac).count() >= EACH {
            let oldest = self.all.iter().enumerate().filter(|(_, t)| t.peer.mac == wanted.peer.mac);
            let oldest = oldest.min_by_key(|(_, t)| t.begun).map(|(at, _)| at);
            oldest.map(|at| self.all.swap_remove(at));
        }
        if self.all.len() >= ALL {
            return false;
        }
        let options = wanted.options;
        let agreed = Some(options.to_bytes()).filter(|bytes| !bytes.is_empty());
        let fixed_wait = options.seconds.map(|seconds| Duration::from_secs(seconds.into()));
        let wait = fixed_wait.unwrap_or(WAIT);
        let ports = [self.port(), wanted.port];
        self.all.push(Transfer {
            ports,
            peer: wanted.peer,
            client: wanted.client,
            file: wanted.file,
            bytes: wanted.bytes,
            block: options.block.unwrap_or(BLOCK),
            window: options.window.unwrap_or(1),
            agreed,
            agreed_sent: false,
            arrived: 0,
            sent: 0,
            fixed_wait,
            wait,
            again_at: now + wait,
            tries: 0,
            begun: now,
        });
        true
    }

    /// A port that no transfer has.
    fn port(&mut self) -> u16 {
        loop {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            // There are far more ports than transfers.
            if self.all.iter().all(|t| t.ports[0] != port) {
                return port;
            }
        }
    }

    fn find(&self, peer: Peer, ports: [u16; 2]) -> Option<usize> {
        self.all.iter().position(|t| t.ports == ports && t.peer == peer)
    }

    /// Takes an acknowledgement that came to `ports[0]` from `ports[1]`.
    pub fn acknowledge(&mut self, now: Duration, peer: Peer, ports: [u16; 2], number: u16, events: &mut Events) {
        let Some(at) = self.find(peer, ports) else { return };
        if self.all[at].acknowledge(now, number, events) {
            let done = self.all.swap_remove(at);
            let (bytes, took) = (done.bytes.len(), now.saturating_sub(done.begun));
            events.push(Event::Fetched { client: done.client, file: done.file, bytes, took });
        }
    }

    /// The client has given up.
    pub fn stop(&mut self, peer: Peer, ports: [u16; 2], code: u16, text: &[u8], events: &mut Events) {
        let Some(at) = self.find(peer, ports) else { return };
        let words = String::from_utf8_lossy(&text[..text.len().min(WORDS)]);
        let words: String = words.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        self.all.swap_remove(at).fail(format!("its error {code}, {words:?}"), events);
    }

    /// Sends at most `most` packets, of each transfer one in turn. Returns how many.
    pub fn transmit(&mut self, now: Duration, own: &Own, most: usize, tx: &mut Tx<'_>, events: &mut Events) -> usize {
        let mut at = 0;
        while at < self.all.len() {
            if self.all[at].look(now) {
                self.all.swap_remove(at).fail("it answers no more".into(), events);
            } else {
                at += 1;
            }
        }
        let (mut sent, mut idle) = (0, 0);
        while sent < most && idle < self.all.len() {
            self.turn = (self.turn + 1) % self.all.len();
            let some = self.all[self.turn].send(own, tx);
            (sent, idle) = if some { (sent + 1, 0) } else { (sent, idle + 1) };
        }
        sent
    }

    /// When [`Transfers::transmit`] has something to do; `now` if it has already.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        self.all.iter().map(|t| if t.is_due() { now } else { t.again_at }).min()
    }

    pub fn running(&self) -> impl Iterator<Item = Running> {
        self.all.iter().filter(|t| t.arrived > 0).map(|t| Running {
            client: t.client.clone(),
            file: t.file.clone(),
            arrived: t.arrived_bytes(),
            bytes: t.bytes.len(),
        })
    }
}
