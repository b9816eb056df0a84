//! Values with a form of their own: addresses, links, sizes. Each is written as it is read.

use std::fmt::{self, Display};
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that has not the form it should have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not {expected}")]
pub struct FormError {
    found: String,
    expected: String,
}

impl FormError {
    pub(crate) fn new(found: &str, expected: impl Into<String>) -> FormError {
        FormError { found: found.chars().take(100).collect(), expected: expected.into() }
    }
}

/// Serde by [`FromStr`] and [`Display`].
macro_rules! as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = FormError;

            fn try_from(text: String) -> Result<Self, FormError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

/// A number of exactly so many hexadecimal digits.
fn hexadecimal(text: &str, digits: usize) -> Option<u16> {
    let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u16::from_str_radix(text, 16).ok()).flatten()
}

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

as_text!(Mac);

impl Mac {
    /// Whether it can be a single device's: neither a group's nor all zeros.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0 && self.0 != [0; 6]
    }
}

impl FromStr for Mac {
    type Err = FormError;

    fn from_str(text: &str) -> Result<Mac, FormError> {
        let form = || FormError::new(text, "a hardware address such as 02:00:00:00:00:01");
        let pairs: Vec<_> = text.split(':').map(|pair| hexadecimal(pair, 2)).collect::<Option<_>>().ok_or_else(form)?;
        let bytes = pairs.into_iter().map(|pair| pair as u8).collect::<Vec<_>>();
        Ok(Mac(bytes.try_into().map_err(|_| form())?))
    }
}

impl Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The addresses of one broadcast domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Subnet {
    network: Ipv4Addr,
    prefix: u8,
}

as_text!(Subnet);

impl Subnet {
    /// The lengths that a prefix may have: room for a host and a duck at least.
    const PREFIXES: std::ops::RangeInclusive<u8> = 8..=30;

    /// The address of the subnet itself.
    pub fn network(self) -> Ipv4Addr {
        self.network
    }

    /// Bits that all its addresses have in common, 8 to 30.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Those bits.
    pub fn mask(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(u32::MAX << (32 - self.prefix))
    }

    /// The address of everyone in it.
    pub fn broadcast(self) -> Ipv4Addr {
        self.network | !self.mask()
    }

    /// The first address that a device may have.
    pub fn first(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network.to_bits() + 1)
    }

    /// Whether the address is one of its own, network and broadcast included.
    pub fn contains(self, address: Ipv4Addr) -> bool {
        address & self.mask() == self.network
    }

    /// Whether an address is in both.
    pub fn overlaps(self, other: Subnet) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }
}

impl FromStr for Subnet {
    type Err = FormError;

    fn from_str(text: &str) -> Result<Subnet, FormError> {
        let form = || FormError::new(text, "a subnet such as 10.21.1.0/24, with a prefix of 8 to 30 bits");
        let (address, prefix) = text.split_once('/').ok_or_else(form)?;
        if prefix.is_empty() || prefix.len() > 2 || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(form());
        }
        let (address, prefix) = (address.parse().map_err(|_| form())?, prefix.parse().map_err(|_| form())?);
        if !Subnet::PREFIXES.contains(&prefix) {
            return Err(form());
        }
        let whole = Subnet { network: address, prefix };
        let subnet = Subnet { network: address & whole.mask(), prefix };
        if subnet != whole {
            return Err(FormError::new(text, format!("the address of a subnet; write {subnet}")));
        }
        // 0.0.0.0/8, groups and what is reserved.
        if address.octets()[0] == 0 || address.octets()[0] >= 224 {
            return Err(FormError::new(text, "a subnet of single devices"));
        }
        Ok(subnet)
    }
}

impl Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// Where a card is on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    domain: u16,
    bus: u8,
    device: u8,
    function: u8,
}

as_text!(PciAddress);

impl FromStr for PciAddress {
    type Err = FormError;

    fn from_str(text: &str) -> Result<PciAddress, FormError> {
        let parse = || {
            let (rest, function) = text.split_once('.')?;
            let [domain, bus, device] = rest.split(':').collect::<Vec<_>>().try_into().ok()?;
            let address = PciAddress {
                domain: hexadecimal(domain, 4)?,
                bus: hexadecimal(bus, 2)? as u8,
                device: hexadecimal(device, 2)? as u8,
                function: hexadecimal(function, 1)? as u8,
            };
            (address.device < 32 && address.function < 8).then_some(address)
        };
        parse().ok_or_else(|| FormError::new(text, "a PCI address such as 0000:01:00.0"))
    }
}

impl Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// A kind of card, by vendor and device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VfioId {
    /// The vendor's number.
    pub vendor: u16,
    /// The vendor's number of the device.
    pub device: u16,
}

as_text!(VfioId);

impl FromStr for VfioId {
    type Err = FormError;

    fn from_str(text: &str) -> Result<VfioId, FormError> {
        let parse = || {
            let (vendor, device) = text.split_once(':')?;
            Some(VfioId { vendor: hexadecimal(vendor, 4)?, device: hexadecimal(device, 4)? })
        };
        parse().ok_or_else(|| FormError::new(text, "vendor and device of a card, such as 8086:1593"))
    }
}

impl Display for VfioId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

/// What carries a port's frames: `eth:INTERFACE`, `udp:…` or `dpdk:DEVICE`. What follows `udp:` is for the link itself to understand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Link(String);

as_text!(Link);

/// The kinds of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// Raw Ethernet on an interface of the kernel.
    Ethernet,
    /// Frames in UDP datagrams, for trying things out.
    Udp,
    /// A card, or a virtual device, that DPDK drives.
    Dpdk,
}

impl Link {
    /// Longest text.
    const MOST: usize = 256;

    /// Which kind.
    pub fn kind(&self) -> LinkKind {
        match self.0.split_once(':') {
            Some(("eth", _)) => LinkKind::Ethernet,
            Some(("udp", _)) => LinkKind::Udp,
            _ => LinkKind::Dpdk,
        }
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What follows the kind: an interface, a PCI address.
    pub fn target(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, target)| target)
    }

    /// The PCI address in it.
    pub fn pci(&self) -> Option<PciAddress> {
        if self.kind() == LinkKind::Dpdk { self.target().parse().ok() } else { None }
    }
}

impl FromStr for Link {
    type Err = FormError;

    fn from_str(text: &str) -> Result<Link, FormError> {
        let expected = "a link such as eth:enp3s0, udp:127.0.0.1:7000 or dpdk:0000:01:00.0";
        let form = || FormError::new(text, expected);
        let (kind, target) = text.split_once(':').ok_or_else(form)?;
        let visible = !target.is_empty() && target.bytes().all(|byte| byte.is_ascii_graphic());
        if !visible || text.len() > Link::MOST {
            return Err(form());
        }
        match kind {
            "eth" if target.len() < 16 && !target.contains(['/', ':']) && target != "." && target != ".." => {}
            "udp" => {}
            // DPDK's virtual devices are all called net_ and something.
            "dpdk" if target.starts_with("net_") => {}
            "dpdk" => {
                let pci: PciAddress = target.parse()?;
                return Ok(Link(format!("dpdk:{pci}")));
            }
            "eth" => return Err(FormError::new(text, "a link on an interface, whose name has 1 to 15 characters")),
            _ => return Err(form()),
        }
        Ok(Link(text.into()))
    }
}

impl Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A number of bytes; written with the largest unit that divides it, read also as a plain number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for Size {
    type Err = FormError;

    fn from_str(text: &str) -> Result<Size, FormError> {
        let form = || FormError::new(text, "a size such as 24GiB or 512MiB");
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| form())?;
        let unit = unit.trim_start_matches(' ');
        let factor = match (unit, UNITS.iter().find(|(name, _)| *name == unit)) {
            (_, Some((_, power))) => 1u64 << power,
            ("" | "B", None) => 1,
            _ => return Err(form()),
        };
        Ok(Size(number.checked_mul(factor).ok_or_else(form)?))
    }
}

impl Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, power)| self.0 != 0 && self.0.is_multiple_of(1 << power));
        match unit {
            Some((name, power)) => write!(f, "{}{name}", self.0 >> power),
            None => write!(f, "{}B", self.0),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 24GiB, or a number of bytes")
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }

            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<Size, E> {
                let wrong = |_| E::invalid_value(serde::de::Unexpected::Signed(bytes), &self);
                u64::try_from(bytes).map(Size).map_err(wrong)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// An IPv4 address that may be absent, with the value in the message of a wrong one.
pub(crate) mod address {
    use std::net::Ipv4Addr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(address: &Option<Ipv4Addr>, serializer: S) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Ipv4Addr>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
        let form = |_| crate::FormError::new(&text, "an IPv4 address such as 10.21.1.11");
        text.parse().map(Some).map_err(form).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn both_ways<T: FromStr<Err = FormError> + Display>(texts: &[&str]) {
        for text in texts {
            assert_eq!(text.parse::<T>().map(|value| value.to_string()), Ok((*text).to_owned()));
        }
    }

    #[track_caller]
    fn refused<T: FromStr<Err = FormError> + fmt::Debug>(texts: &[&str]) {
        for text in texts {
            let error = text.parse::<T>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn values_are_written_as_they_are_read() {
        both_ways::<Mac>(&["02:00:5e:ff:0a:01", "00:00:00:00:00:00"]);
        both_ways::<Subnet>(&["10.0.0.0/8", "10.21.4.0/24", "192.168.7.252/30"]);
        both_ways::<PciAddress>(&["0000:01:00.0", "0001:af:1f.7"]);
        both_ways::<VfioId>(&["8086:1593"]);
        both_ways::<Link>(&["eth:enp3s0", "eth:x.100@lan", "udp:[::1]:7", "dpdk:0000:01:00.3", "dpdk:net_ring0,a=1"]);
        both_ways::<Size>(&["24GiB", "1TiB", "1025MiB", "7KiB", "1000B", "0B", "18446744073709551615B"]);
        assert_eq!("dpdk:0000:AF:00.0".parse::<Link>().map(String::from).as_deref(), Ok("dpdk:0000:af:00.0"));
        assert_eq!(("1000".parse(), "2 KiB".parse()), (Ok(Size(1000)), Ok(Size(2048))));
    }

    #[test]
    fn other_forms_are_refused_with_the_value() {
        refused::<Mac>(&[
            "",
            "02:00:5e:ff:0a",
            "02:00:5e:ff:0a:01:02",
            "02-00-5e-ff-0a-01",
            "2:0:5e:ff:a:1",
            "+2:00:5e:ff:0a:01",
        ]);
        refused::<Subnet>(&[
            "10.0.0.0",
            "10.0.0.0/7",
            "10.0.0.0/31",
            "10.0.0.1/24",
            "10.0.0.0/+8",
            "10.0.0/24",
            "224.0.0.0/8",
        ]);
        refused::<Subnet>(&["0.0.0.0/8", "10.0.0.0/", "10.0.0.0/024", "::/8"]);
        refused::<PciAddress>(&[
            "01:00.0",
            "0000:01:20.0",
            "0000:01:00.8",
            "0000:01:00",
            "0000:01:00.00",
            "0000:01:0g.0",
        ]);
        refused::<VfioId>(&["8086", "8086:1593:0", "8086:159", "ice"]);
        refused::<Link>(&[
            "eth",
            "eth:",
            "eth:a b",
            "eth:..",
            "eth:sixteen-letters.",
            "ethernet:x",
            "dpdk:",
            "udp:",
            "udp:a\nb",
            "",
        ]);
        refused::<Size>(&["", "GiB", "1.5GiB", "-1", "1 gib", "16777216TiB", "99999999999999999999"]);
        assert!("dpdk:01:00.0".parse::<Link>().is_err());
        let error = "10.21.1.7/24".parse::<Subnet>().expect_err("no subnet").to_string();
        assert!(error.ends_with("write 10.21.1.0/24"), "{error}");
    }

    #[test]
    fn a_subnet_knows_its_addresses() {
        let subnet: Subnet = "192.168.7.248/29".parse().expect("a subnet");
        assert_eq!(
            (subnet.first(), subnet.broadcast()),
            (Ipv4Addr::new(192, 168, 7, 249), Ipv4Addr::new(192, 168, 7, 255))
        );
        assert_eq!(subnet.mask(), Ipv4Addr::new(255, 255, 255, 248));
        assert!(subnet.contains(Ipv4Addr::new(192, 168, 7, 248)) && !subnet.contains(Ipv4Addr::new(192, 168, 7, 247)));
        let overlap = |other: &str| subnet.overlaps(other.parse().expect("a subnet"));
        assert!(overlap("192.168.0.0/16") && overlap("192.168.7.252/30") && !overlap("192.168.7.240/29"));
    }
}
