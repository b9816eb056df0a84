//! Who is there, without taking anybody: for people who look at ducks before they run them.

use std::time::{Duration, Instant};

use link::{Link, Mac, ethernet};
use wire::frozen::Announce;

use super::domain::{ask_everybody, parse_announce};
use super::status::identity_name;

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

/// Asks for so long who is on a link; sorted by name.
pub fn discover(link: &mut dyn Link, wait: Duration) -> Vec<Found> {
    let until = Instant::now() + wait;
    let mut ask_at = Instant::now();
    let mut found: Vec<Found> = Vec::new();
    loop {
        let now = Instant::now();
        if now >= until {
            break;
        }
        if now >= ask_at {
            ask_everybody(link, wire::crc::native);
            link.flush();
            ask_at = now + ASK_EVERY;
        }
        link.wait(Some(until.min(ask_at).saturating_duration_since(now)));
        while link.rx(&mut |bytes| {
            let Some((mac, frame)) = ethernet::open(bytes, wire::ETHERTYPE) else { return };
            let Some(announce) = parse_announce(frame, wire::crc::native) else { return };
            let name = identity_name(&announce.id);
            match found.iter_mut().find(|duck| duck.mac == mac) {
                Some(duck) => *duck = Found { name, mac, announce },
                None => found.push(Found { name, mac, announce }),
            }
        }) > 0
        {}
    }
    found.sort_by(|a, b| (&a.name, a.mac).cmp(&(&b.name, b.mac)));
    found
}
