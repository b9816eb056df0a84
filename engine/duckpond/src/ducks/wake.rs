//! Waking a duck that is off: a magic packet (AMD, "Magic Packet Technology") to everybody on its port, in a frame of its own type.

use std::path::Path;

use link::{BROADCAST, ETHERNET, Header, Link, Mac};
use pond::Pond;

use super::{DucksError, open};
use crate::error::Error;

/// The type of such frames.
const WAKE_ON_LAN: u16 = 0x0842;
/// A lost one is not asked for again.
const TIMES: usize = 3;

/// Runs `duckpond ducks wake`.
///
/// # Errors
/// A duck that is in no row or has no hardware address there; a link that cannot be opened.
pub fn run(duck: &str, file: &Path) -> Result<(), Error> {
    let description = Pond::load(file)?;
    let cannot = |reason| DucksError::Wake { duck: duck.into(), reason };
    let row = description.ducks.iter().find(|row| row.name == duck);
    let row = row.ok_or_else(|| cannot("no row of the description has that name"))?;
    let mac = row.mac.ok_or_else(|| cannot("its row has no hardware address to wake it by: add mac = \"…\""))?;
    let mut link = open::link(&description, &row.port)?;
    (0..TIMES).for_each(|_| send(&mut *link, Mac(mac.0)));
    link.flush();
    Ok(())
}

fn send(link: &mut dyn Link, duck: Mac) {
    let from = link.mac();
    link.tx(&mut |frame| {
        let Some(payload) = (Header { to: BROADCAST, from, ethertype: WAKE_ON_LAN }).emit(frame) else { return 0 };
        payload[..6].fill(0xff);
        payload[6..102].chunks_mut(6).for_each(|part| part.copy_from_slice(&duck.0));
        ETHERNET + 102
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::Hub;

    #[test]
    fn the_packet_repeats_the_address_sixteen_times() {
        let hub = Hub::new();
        let (mut own, mut other) = (hub.port(Mac([2, 0, 0, 0, 0, 1]), 1_500), hub.port(Mac([2, 0, 0, 0, 0, 2]), 1_500));
        send(&mut own, Mac([1, 2, 3, 4, 5, 6]));
        own.flush();
        let mut heard = Vec::new();
        other.rx(&mut |frame| heard.push(frame.to_vec()));
        assert_eq!(heard.len(), 1);
        let expected =
            [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 0x08, 0x42], &[0xff; 6], &[1, 2, 3, 4, 5, 6].repeat(16)].concat();
        assert_eq!(heard[0], expected);
    }
}
