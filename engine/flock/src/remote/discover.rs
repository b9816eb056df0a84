//! Who is there, without taking anybody: for people who look at ducks before they run them.

use std::time::{Duration, Instant};

use link::{Mac, ethernet};
use wire::frozen::Announce;

use super::domain::{ask_everybody, parse_announce};
use super::status::identity_name;
use super::{Port, booting};

/// How often everybody is asked.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// A duck that was heard of.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Its identity as text.
    pub name: String,
    /// Its address.
    pub mac: Mac,
    /// What it said last.
    pub announce: Announce,
}

/// Asks for so long who is behind a port, and answers those who boot there; sorted by name.
pub fn discover(port: &mut Port, wait: Duration) -> Vec<Found> {
    let Port { name, link, boot } = port;
    let started = Instant::now();
    let until = started + wait;
    let mut ask_at = Instant::now();
    let mut found: Vec<Found> = Vec::new();
    loop {
        let now = Instant::now();
        if now >= until {
            break;
        }
        if now >= ask_at {
            ask_everybody(&mut **link, wire::crc::native);
            link.flush();
            ask_at = now + ASK_EVERY;
        }
        let answer_at =
            boot.as_ref().and_then(|service| service.next_deadline(started.elapsed())).map(|at| started + at);
        let next = until.min(ask_at).min(answer_at.unwrap_or(until));
        link.wait(Some(next.saturating_duration_since(now)));
        while link.rx(&mut |bytes| {
            if boot.as_mut().is_some_and(|service| service.handle(started.elapsed(), bytes)) {
                return;
            }
            let Some((mac, frame)) = ethernet::open(bytes, wire::ETHERTYPE) else { return };
            let Some(announce) = parse_announce(frame, wire::crc::native) else { return };
            let name = identity_name(&announce.id);
            match found.iter_mut().find(|duck| duck.mac == mac) {
                Some(duck) => *duck = Found { name, mac, announce },
                None => found.push(Found { name, mac, announce }),
            }
        }) > 0
        {}
        if let Some(service) = boot {
            while booting::answer(service, &mut **link, started.elapsed(), name) {}
        }
    }
    found.sort_by(|a, b| (&a.name, a.mac).cmp(&(&b.name, b.mac)));
    found
}
