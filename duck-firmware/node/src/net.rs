//! Frames between the carrier and the duck's state machine.

use wire::Micros;
use wire::duck::{Address, Session, To};
use wire::ethernet::{self, BROADCAST, ETHERNET};
use wire::frame::ETHERTYPE;

use crate::seams::Carrier;
use crate::store::Store;

/// Frames that are sent before the next look at what has arrived.
const BURST: usize = 32;

/// A carrier, and the state machine behind it.
#[derive(Debug)]
pub(crate) struct Net<C> {
    pub carrier: C,
    pub session: Session<Store>,
    mac: Address,
}

impl<C: Carrier> Net<C> {
    pub fn new(carrier: C, session: Session<Store>) -> Net<C> {
        let mac = ethernet::address(carrier.mac());
        Net { carrier, session, mac }
    }

    pub fn now(&self) -> Micros {
        self.carrier.now()
    }

    /// Takes what has arrived, does what is due, sends what there is. Returns whether frames came or more wait to be sent, and the time.
    pub fn poll(&mut self) -> (bool, Micros) {
        // Also in the middle of a long step, so that no watchdog takes it for a hang.
        self.carrier.beat();
        let now = self.now();
        let Net { carrier, session, .. } = self;
        let came = carrier.rx(&mut |frame| take(session, now, frame)) > 0;
        if session.next_timeout().is_some_and(|at| at <= now) {
            session.handle_timeout(now);
        }
        (self.send(now) || came, now)
    }

    /// Sends some of what there is; whether there may be more.
    pub fn send(&mut self, now: Micros) -> bool {
        let Net { carrier, session, mac } = self;
        let mut sent = 0;
        while sent < BURST && carrier.tx(&mut |buf| put(session, now, *mac, buf)) {
            sent += 1;
        }
        if sent > 0 {
            carrier.flush();
        }
        sent == BURST
    }

    /// Sleeps until a frame comes, `until`, or `most` has passed.
    pub fn wait(&mut self, now: Micros, until: Option<Micros>, most: Micros) {
        let due = [self.session.next_timeout(), until, Some(now + most)];
        let micros = due.into_iter().flatten().min().unwrap_or(now).saturating_sub(now);
        if micros > 0 {
            self.carrier.wait(micros);
        }
    }
}

fn take(session: &mut Session<Store>, now: Micros, frame: &[u8]) {
    if let Some((from, payload)) = ethernet::open(frame, ETHERTYPE) {
        session.handle_frame(now, from, payload);
    }
}

/// Writes the session's next frame; its length, or 0.
fn put(session: &mut Session<Store>, now: Micros, mac: Address, buf: &mut [u8]) -> usize {
    let Some(sent) = buf.get_mut(ETHERNET..).and_then(|payload| session.poll_transmit(now, payload)) else { return 0 };
    let to = match sent.to {
        To::All => BROADCAST,
        To::One(address) => address,
    };
    ethernet::close(buf, ethernet::Header { to, from: mac, ethertype: ETHERTYPE }, sent.len)
}
