//! The boot command line: who this duck is and whom it obeys.
//!
//! `name=<name> key=<64 hexadecimal digits> nic=<bus:device.function or hardware address> memtest=<0|1>`, in any order. What is unknown is
//! ignored and told, since a newer pond's images may say more.

use wire::frozen::{ID, identity};
use wire::hex;
use wire::key::PublicKey;

/// Which network card to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The first with a driver that starts.
    #[default]
    First,
    /// The one at this place: bus, device, function.
    Place(u8, u8, u8),
    /// The one with this hardware address.
    Mac([u8; 6]),
}

/// What was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Identity; without it the hardware address is one.
    pub id: Option<[u8; ID]>,
    /// The pond's public key; without it nobody can open a session.
    pub key: Option<PublicKey>,
    /// The network card.
    pub nic: Choice,
    /// Whether all memory is tried first.
    pub memory_test: bool,
    /// Whether anything was not understood; names the last such word's start and length.
    pub strange: Option<(usize, usize)>,
}

impl Command {
    /// Reads a line.
    pub fn parse(line: &str) -> Command {
        let mut command = Command::default();
        for word in line.split_ascii_whitespace() {
            let understood = match word.split_once('=') {
                Some(("name", name)) => set(&mut command.id, identity(name)),
                Some(("key", key)) => set(&mut command.key, hex::decode(key).map(PublicKey)),
                Some(("nic", text)) => choice(text).map(|c| command.nic = c).is_some(),
                Some(("memtest", text @ ("0" | "1"))) => {
                    command.memory_test = text == "1";
                    true
                }
                // A boot loader may put the image's own name first.
                None => word.starts_with('/') || word.starts_with('('),
                _ => false,
            };
            if !understood {
                command.strange = Some((word.as_ptr() as usize - line.as_ptr() as usize, word.len()));
            }
        }
        command
    }
}

fn set<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let understood = value.is_some();
    *place = value.or(place.take());
    understood
}

fn choice(text: &str) -> Option<Choice> {
    if text.split(':').count() == 6 {
        let mut mac = [0; 6];
        for (byte, digits) in mac.iter_mut().zip(text.split(':')) {
            *byte = hex::decode::<1>(digits)?[0];
        }
        return Some(Choice::Mac(mac));
    }
    let (bus, rest) = text.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let number = |text: &str, below: u8| u8::from_str_radix(text, 16).ok().filter(|&n| n < below);
    Some(Choice::Place(u8::from_str_radix(bus, 16).ok()?, number(device, 32)?, number(function, 8)?))
}

/// The identity of a duck that was told none: its hardware address.
pub fn default_id(mac: [u8; 6]) -> [u8; ID] {
    let mut id = [0; ID];
    let digits = |n: u8| b"0123456789abcdef"[usize::from(n & 15)];
    for (i, byte) in mac.into_iter().enumerate() {
        (id[2 * i], id[2 * i + 1]) = (digits(byte >> 4), digits(byte));
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_line_is_understood() {
        let key = "0f".repeat(32);
        let line = format!("/boot/duck.elf name=duck-07 key={key} nic=01:1f.0 memtest=1");
        let command = Command::parse(&line);
        assert_eq!(command.id, identity("duck-07"));
        assert_eq!(command.key, Some(PublicKey([15; 32])));
        assert_eq!((command.nic, command.memory_test, command.strange), (Choice::Place(1, 31, 0), true, None));
        assert_eq!(Command::parse("nic=02:00:00:00:0a:ff").nic, Choice::Mac([2, 0, 0, 0, 10, 255]));
    }

    #[test]
    fn what_is_not_understood_is_named_and_the_rest_counts() {
        for (line, strange) in [
            ("name=duck key=0f0f", "key=0f0f"),
            ("name=duck speed=9", "speed=9"),
            ("nic=1:2 name=duck", "nic=1:2"),
            ("name=duck nic=00:20.0", "nic=00:20.0"),
            ("name=duck name=a-name-that-is-too-long", "name=a-name-that-is-too-long"),
            ("name=duck key=é", "key=é"),
            ("quiet name=duck", "quiet"),
        ] {
            let command = Command::parse(line);
            let (start, len) = command.strange.expect("something is strange");
            assert_eq!((&line[start..start + len], command.id), (strange, identity("duck")));
        }
        assert_eq!(Command::parse(""), Command::default());
    }

    #[test]
    fn without_a_name_the_hardware_address_is_one() {
        assert_eq!(&default_id([2, 0, 0, 0, 0x1a, 0xff]), b"020000001aff\0\0\0\0");
    }
}
