//! The network thread's part: frames between the link and the duck's state machine.

use std::time::{Duration, Instant};

use link::{BROADCAST, ETHERNET, Link, Mac, ethernet};
use wire::Micros;
use wire::duck::{Address, Session, To};
use wire::frame::ETHERTYPE;

use crate::monitor::Monitor;
use crate::store::Store;

/// Frames that are sent before the next look at what has arrived.
const BURST: usize = 32;

/// A link, the state machine behind it, and a clock.
pub(crate) struct Net {
    pub link: Box<dyn Link>,
    pub session: Session<Store>,
    origin: Instant,
    mac: Mac,
    monitor: Monitor,
}

impl Net {
    /// `origin`: when `session`'s clock was 0.
    pub fn new(link: Box<dyn Link>, session: Session<Store>, origin: Instant, monitor: Monitor) -> Net {
        let mac = link.mac();
        Net { link, session, origin, mac, monitor }
    }

    pub fn now(&self) -> Micros {
        micros(self.origin.elapsed())
    }

    /// Takes what has arrived, does what is due, sends what there is. Returns whether frames came or more wait to be sent, and the time.
    pub fn poll(&mut self) -> (bool, Micros) {
        // Also in the middle of a long step, so that no watchdog takes it for a hang.
        self.monitor.beat();
        let now = self.now();
        let Net { link, session, .. } = self;
        let came = link.rx(&mut |frame| take(session, now, frame)) > 0;
        if session.next_timeout().is_some_and(|at| at <= now) {
            session.handle_timeout(now);
        }
        (self.send(now) || came, now)
    }

    /// Sends some of what there is; whether there may be more.
    pub fn send(&mut self, now: Micros) -> bool {
        let Net { link, session, mac, .. } = self;
        let mut sent = 0;
        while sent < BURST && link.tx(&mut |buf| put(session, now, *mac, buf)) {
            sent += 1;
        }
        if sent > 0 {
            link.flush();
        }
        sent == BURST
    }

    /// Sleeps until a frame comes, `until`, or `most` has passed.
    pub fn wait(&mut self, now: Micros, until: Option<Micros>, most: Micros) {
        let due = [self.session.next_timeout(), until, Some(now + most)];
        let micros = due.into_iter().flatten().min().unwrap_or(now).saturating_sub(now);
        if micros > 0 {
            self.link.wait(Some(Duration::from_micros(micros)));
        }
    }
}

pub(crate) fn micros(time: Duration) -> Micros {
    Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX)
}

/// An Ethernet frame's sender and payload, if it is one of this protocol's.
fn open(frame: &[u8]) -> Option<(Address, &[u8])> {
    ethernet::open(frame, ETHERTYPE).map(|(from, payload)| (from.to_u64(), payload))
}

fn take(session: &mut Session<Store>, now: Micros, frame: &[u8]) {
    if let Some((from, payload)) = open(frame) {
        session.handle_frame(now, from, payload);
    }
}

/// Writes the session's next frame; its length, or 0.
fn put(session: &mut Session<Store>, now: Micros, mac: Mac, buf: &mut [u8]) -> usize {
    let Some(sent) = buf.get_mut(ETHERNET..).and_then(|payload| session.poll_transmit(now, payload)) else { return 0 };
    let to = match sent.to {
        To::All => BROADCAST,
        To::One(address) => Mac::from_u64(address),
    };
    ethernet::close(buf, ethernet::Header { to, from: mac, ethertype: ETHERTYPE }, sent.len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frames_of_the_protocols_type_are_opened() {
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 1, 9, 0x88, 0xb5, b'D', b'P']);
        assert_eq!(open(&frame), Some((0x0200_0000_0109, &b"DP"[..])));
        assert_eq!(open(&frame[..13]), None);
        frame[13] = 0;
        assert_eq!(open(&frame), None);
    }
}
