//! A link in a configuration: `eth:enp3s0`, `udp:127.0.0.1:7000,127.0.0.1:7001`, `dpdk:0000:01:00.0`.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use crate::{AfPacket, Link, LinkError, Udp};

/// MTU of UDP on the loopback interface: the longest that the wire protocol uses.
const UDP_LOOPBACK: usize = 9600;
/// MTU of UDP elsewhere: every path carries it, at worst as two fragments, and the wire protocol needs no less.
const UDP: usize = 1500;

/// Which link to open. `Display` and `FromStr` are inverse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// `eth:IFNAME`: a network interface, by [`AfPacket`].
    Interface(String),
    /// `udp:ADDR:PORT[,PEER:PORT…]`: frames in datagrams, by [`Udp`].
    Udp {
        /// Where to bind.
        bind: SocketAddr,
        /// Who gets frames for unknown receivers.
        peers: Vec<SocketAddr>,
    },
    /// `dpdk:DEVICE`: a port that the kernel has given away.
    Dpdk(String),
}

/// Text that describes no link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// It starts with no known word.
    #[error("expected eth:IFNAME, udp:ADDR:PORT[,PEER:PORT...] or dpdk:DEVICE, found {found:?}{}", hint(found))]
    Form {
        /// The text.
        found: String,
    },
    /// Not an interface's name.
    #[error(
        "eth: expected the name of a network interface, 1 to 15 bytes without space, slash or colon, found {found:?}"
    )]
    Interface {
        /// The name.
        found: String,
    },
    /// Not a socket address.
    #[error("udp: expected an address and port such as 10.0.0.1:7000 or [fd00::1]:7000, found {found:?}")]
    Address {
        /// The text.
        found: String,
    },
    /// No device.
    #[error("dpdk: expected a device such as 0000:01:00.0, found nothing")]
    Device,
}

/// A bare name is most likely an interface's.
fn hint(found: &str) -> String {
    if is_interface(found) { format!("; for the network interface write eth:{found}") } else { String::new() }
}

fn is_interface(name: &str) -> bool {
    let wrong = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == ':';
    (1..16).contains(&name.len()) && name != "." && name != ".." && !name.contains(wrong)
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        match text.split_once(':') {
            Some(("eth", name)) if is_interface(name) => Ok(Spec::Interface(name.to_owned())),
            Some(("eth", name)) => Err(SpecError::Interface { found: name.to_owned() }),
            Some(("udp", addresses)) => {
                let address = |text: &str| text.parse().map_err(|_| SpecError::Address { found: text.to_owned() });
                let mut addresses = addresses.split(',').map(address);
                let bind = addresses.next().expect("a split has a first part")?;
                Ok(Spec::Udp { bind, peers: addresses.collect::<Result<_, _>>()? })
            }
            Some(("dpdk", "")) => Err(SpecError::Device),
            Some(("dpdk", device)) => Ok(Spec::Dpdk(device.to_owned())),
            _ => Err(SpecError::Form { found: text.to_owned() }),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Interface(name) => write!(f, "eth:{name}"),
            Spec::Udp { bind, peers } => {
                write!(f, "udp:{bind}")?;
                peers.iter().try_for_each(|peer| write!(f, ",{peer}"))
            }
            Spec::Dpdk(device) => write!(f, "dpdk:{device}"),
        }
    }
}

impl Spec {
    /// Opens the link. `ethertype` is that of the frames which an interface hands over; UDP has its own socket and hands over all. Without `mtu` an
    /// interface says its own, and UDP has 9600 on loopback and 1500 elsewhere; with it, an interface's is at most that.
    ///
    /// # Errors
    ///
    /// Those of [`AfPacket::open`] and [`Udp::bind`]; [`LinkError::NoDpdk`].
    pub fn open(&self, ethertype: u16, mtu: Option<usize>) -> Result<Box<dyn Link>, LinkError> {
        self.open_for(&[ethertype], mtu)
    }

    /// As [`Spec::open`], for frames of several types, at most eight.
    ///
    /// # Errors
    ///
    /// As [`Spec::open`].
    pub fn open_for(&self, ethertypes: &[u16], mtu: Option<usize>) -> Result<Box<dyn Link>, LinkError> {
        match self {
            Spec::Interface(name) => Ok(Box::new(AfPacket::open_at_most(name, ethertypes, mtu.unwrap_or(usize::MAX))?)),
            Spec::Udp { bind, peers } => {
                let usual = if bind.ip().is_loopback() { UDP_LOOPBACK } else { UDP };
                Ok(Box::new(Udp::bind(*bind, peers, None, mtu.unwrap_or(usual))?))
            }
            Spec::Dpdk(device) => Err(LinkError::NoDpdk { device: device.clone() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form_is_read_and_written() {
        for text in [
            "eth:enp3s0",
            "eth:lan.7",
            "udp:127.0.0.1:7000",
            "udp:[::1]:7000,10.0.0.2:1,[fe80::1%2]:65535",
            "dpdk:0000:01:00.0",
        ] {
            let spec: Spec = text.parse().expect(text);
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn a_bare_interface_is_told_the_forms() {
        let error = "enp3s0".parse::<Spec>().expect_err("no form").to_string();
        let forms = "expected eth:IFNAME, udp:ADDR:PORT[,PEER:PORT...] or dpdk:DEVICE";
        assert_eq!(error, format!("{forms}, found \"enp3s0\"; for the network interface write eth:enp3s0"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, message) in [
            ("", "dpdk:DEVICE, found \"\""),
            ("tcp:1.2.3.4:5", "found \"tcp:1.2.3.4:5\""),
            ("eth:", "15 bytes without space, slash or colon, found \"\""),
            ("eth:../../etc", "found \"../../etc\""),
            ("eth:sixteen-bytes-xx", "found \"sixteen-bytes-xx\""),
            ("udp:", "such as 10.0.0.1:7000 or [fd00::1]:7000, found \"\""),
            ("udp:127.0.0.1", "found \"127.0.0.1\""),
            ("udp:127.0.0.1:1,", "found \"\""),
            ("udp:localhost:7000", "found \"localhost:7000\""),
            ("dpdk:", "found nothing"),
        ] {
            let error = text.parse::<Spec>().expect_err(text).to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn dpdk_is_refused_by_name_where_it_is_not_built_in() {
        let spec: Spec = "dpdk:0000:01:00.0".parse().expect("a form");
        let error = spec.open(0x88b5, None).err().expect("no DPDK here");
        assert_eq!(error.to_string(), "dpdk:0000:01:00.0: this program is built without DPDK");
    }

    #[test]
    fn udp_has_long_frames_on_loopback_unless_told() {
        let spec: Spec = "udp:127.0.0.1:0".parse().expect("a form");
        assert_eq!(spec.open(0x88b5, None).expect("a link").mtu(), 9600);
        assert_eq!(spec.open(0x88b5, Some(1500)).expect("a link").mtu(), 1500);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "(eth|udp|dpdk|)[:,.0-9a-zé\\[\\] /]{0,24}") {
            if let Ok(spec) = text.parse::<Spec>() {
                prop_assert_eq!(spec.to_string().parse::<Spec>(), Ok(spec));
            }
        }
    }
}
