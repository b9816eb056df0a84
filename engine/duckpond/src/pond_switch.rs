//! `duckpond pond switch`: how the switch between host and ducks is to be set up, from the description.
//!
//! A port of the host and its ducks are one broadcast domain, and each domain is one VLAN of untagged ports, or one switch of its own. Numbers of
//! VLANs and of the switch's ports are proposals; what they hold is not. Left out: any one maker's commands.

use std::fmt::Write;

use pond::{LinkKind, Pond, Port};
use serde::Serialize;

use crate::cli::PondSwitchArgs;
use crate::error::{Error, one_line};
use crate::format::{columns, count};
use crate::output;

/// The first VLAN's number: 1 is where every port of a new switch is, and 0 is none.
const FIRST_VLAN: u32 = 101;
/// Bytes around what a frame carries: two addresses, a type, a check sum.
const FRAME_AROUND: u32 = 18;
/// What any Ethernet carries.
const LEAST_MTU: u32 = 1500;

/// The whole table.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Table {
    pond: String,
    vlans: Vec<Vlan>,
    /// Ports of the pond that go through no switch of its own.
    elsewhere: Vec<String>,
    settings: Vec<Setting>,
}

/// A broadcast domain.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Vlan {
    id: u32,
    /// The pond's name for it.
    port: String,
    subnet: Option<String>,
    /// Bytes that a frame may carry, as described; null where the description leaves it to the links.
    mtu: Option<u32>,
    ports: Vec<SwitchPort>,
}

/// One port of the switch: an untagged member of one VLAN.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct SwitchPort {
    number: usize,
    device: &'static str,
    name: String,
    /// Of the link; for the host, what its ducks can send together.
    mbits: u64,
    mac: Option<String>,
    address: Option<String>,
}

/// Something that the switch should or should not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Setting {
    setting: &'static str,
    value: &'static str,
    why: &'static str,
}

const SETTINGS: [Setting; 9] = [
    Setting {
        setting: "storm control",
        value: "off",
        why: "a step's input is one burst of broadcasts at the speed of the link, which such limits cut off",
    },
    Setting {
        setting: "flow control",
        value: "off",
        why: "a duck that sends pause frames would stop the host, and with it every other duck, while frames that are lost are sent again",
    },
    Setting {
        setting: "energy-efficient Ethernet",
        value: "off",
        why: "a link that sleeps between two steps takes tens of microseconds to wake, in each layer of each token",
    },
    Setting {
        setting: "spanning tree",
        value: "off, or edge ports",
        why: "after a link comes up it blocks the port for half a minute, and a duck that boots over the network has given up by then",
    },
    Setting {
        setting: "DHCP snooping",
        value: "off, or host ports trusted",
        why: "the pond's boot service answers from the host's ports",
    },
    Setting {
        setting: "IGMP snooping, multicast filters",
        value: "off",
        why: "nothing here is multicast, and its queries arrive between the steps",
    },
    Setting {
        setting: "LLDP, CDP, loop detection",
        value: "off",
        why: "frames that nobody asked for make a step late",
    },
    Setting { setting: "filters by EtherType", value: "let 0x88b5 pass", why: "the pond's frames are no IP" },
    Setting {
        setting: "uplinks, routing between VLANs",
        value: "none",
        why: "whoever answers a duck's DHCP request owns that duck, and foreign broadcasts reach every duck",
    },
];

/// Runs the command. Ports may still be without ducks.
///
/// # Errors
/// The first field that is wrong.
pub fn run(args: &PondSwitchArgs) -> Result<(), Error> {
    let table = table(&Pond::load_unfinished(&args.file)?);
    let text = match args.json {
        true => serde_json::to_string(&table).unwrap_or_default() + "\n",
        false => text(&table),
    };
    output::print(&text).map_err(Error::Output)
}

/// Whether the port is a card's. Datagrams find their way by themselves, and virtual devices have no cable.
fn has_cable(port: &Port) -> bool {
    match port.link.kind() {
        LinkKind::Ethernet => true,
        LinkKind::Dpdk => port.link.pci().is_some(),
        LinkKind::Udp => false,
    }
}

fn table(pond: &Pond) -> Table {
    let (cabled, elsewhere): (Vec<&Port>, Vec<&Port>) = pond.ports.iter().partition(|port| has_cable(port));
    let mut next = 1;
    let vlans = cabled.iter().zip(FIRST_VLAN..).map(|(port, id)| {
        let ports = switch_ports(pond, port, next);
        next += ports.len();
        let subnet = port.subnet.map(|subnet| subnet.to_string());
        Vlan { id, port: port.name.clone(), subnet, mtu: port.mtu, ports }
    });
    let vlans = vlans.collect();
    let elsewhere = elsewhere.iter().map(|port| port.name.clone()).collect();
    Table { pond: pond.name.clone(), vlans, elsewhere, settings: SETTINGS.to_vec() }
}

/// The host first, then its ducks, on consecutive ports.
fn switch_ports(pond: &Pond, port: &Port, first: usize) -> Vec<SwitchPort> {
    let host = SwitchPort {
        number: first,
        device: "host",
        name: port.name.clone(),
        mbits: pond.ducks_of(&port.name).map(|duck| u64::from(duck.link)).sum(),
        mac: None,
        address: port.host_address().map(|address| address.to_string()),
    };
    let ducks = pond.ducks_of(&port.name).zip(first + 1..).map(|(duck, number)| SwitchPort {
        number,
        device: "duck",
        name: duck.name.clone(),
        mbits: duck.link.into(),
        mac: duck.mac.map(|mac| mac.to_string()),
        address: duck.address.map(|address| address.to_string()),
    });
    std::iter::once(host).chain(ducks).collect()
}

fn text(table: &Table) -> String {
    let mut text = format!("{:<11}{}\n", "pond", one_line(&table.pond));
    let ports: usize = table.vlans.iter().map(|vlan| vlan.ports.len()).sum();
    let switches = match table.vlans.len() {
        0 => "none: no port of this pond has a cable".to_owned(),
        1 => format!("{} in one broadcast domain", count(ports, "port")),
        n => format!("{} in {n} VLANs; or {n} switches that nothing connects", count(ports, "port")),
    };
    writeln!(text, "{:<11}{switches}", "switch").expect("to a string");
    for port in &table.elsewhere {
        writeln!(text, "{:<11}{port}: its frames need no switch of the pond's own", "no VLAN").expect("to a string");
    }
    for vlan in &table.vlans {
        text.push('\n');
        text.push_str(&vlan_text(vlan));
    }
    if !table.vlans.is_empty() {
        text.push_str("\nOn every port of the switch:\n");
        for Setting { setting, value, why } in &table.settings {
            writeln!(text, "  {setting}: {value}\n    {why}").expect("to a string");
        }
        text.push_str(
            "\nNumbers of VLANs and ports are proposals. A host's Mbit/s is what all its ducks can send at once.\n",
        );
    }
    text
}

fn vlan_text(vlan: &Vlan) -> String {
    let mut parts = vec![vlan.port.clone()];
    parts.extend(vlan.subnet.clone());
    let frames = vlan.mtu.unwrap_or(LEAST_MTU) + FRAME_AROUND;
    parts.push(match vlan.mtu {
        Some(mtu) => format!("MTU {mtu} (frames of {frames} bytes)"),
        None => format!("MTU {LEAST_MTU} (frames of {frames} bytes) or more"),
    });
    parts.push(format!("{}, untagged, in no other VLAN", count(vlan.ports.len(), "access port")));
    let head = ["  port", "device", "name", "Mbit/s", "hardware address", "address"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
    rows.extend(vlan.ports.iter().map(|port| {
        let (number, mbits) = (format!("  {}", port.number), port.mbits.to_string());
        vec![number, port.device.into(), port.name.clone(), mbits, or_none(&port.mac), or_none(&port.address)]
    }));
    format!("{:<11}{}\n{}", format!("VLAN {}", vlan.id), parts.join(", "), columns(&rows))
}

#[cfg(test)]
mod tests {
    use pond::{Duck, Mac};

    use super::*;

    fn pond() -> Pond {
        let mut pond = Pond::new("demo");
        for (name, link) in [
            ("east", "dpdk:0000:01:00.0"),
            ("lab", "udp:127.0.0.1:7000"),
            ("ring", "dpdk:net_ring0"),
            ("west", "eth:enp3s0"),
        ] {
            pond.ports.push(Port::new(name, link.parse().expect("a link")));
        }
        pond.ports[0].subnet = Some("10.21.1.0/24".parse().expect("a subnet"));
        pond.ports[3].mtu = Some(9000);
        for (name, port) in [("mallard", "east"), ("teal", "west"), ("wigeon", "east"), ("pintail", "lab")] {
            pond.ducks.push(Duck::new(name, port));
        }
        pond.ducks[0].mac = Some(Mac([0, 0, 0x5e, 0, 0x53, 1]));
        pond.ducks[0].address = Some("10.21.1.11".parse().expect("an address"));
        pond.ducks[2].link = 1000;
        pond
    }

    #[test]
    fn every_card_is_a_vlan_of_its_own_with_its_ducks_and_nobody_else() {
        let table = table(&pond());
        let members = |vlan: &Vlan| {
            vlan.ports.iter().map(|port| (port.number, port.name.clone(), port.mbits)).collect::<Vec<_>>()
        };
        let vlans: Vec<_> =
            table.vlans.iter().map(|vlan| (vlan.id, vlan.port.as_str(), vlan.mtu, members(vlan))).collect();
        let own = |number, name: &str, mbits| (number, name.to_owned(), mbits);
        let east = vec![own(1, "east", 3500), own(2, "mallard", 2500), own(3, "wigeon", 1000)];
        let west = vec![own(4, "west", 2500), own(5, "teal", 2500)];
        assert_eq!(vlans, [(101, "east", None, east), (102, "west", Some(9000), west)]);
        assert_eq!(table.elsewhere, ["lab", "ring"]);
    }

    #[test]
    fn the_table_for_people_has_addresses_frames_and_what_must_be_off() {
        let text = text(&table(&pond()));
        let expected = "\
pond       demo
switch     5 ports in 2 VLANs; or 2 switches that nothing connects
no VLAN    lab: its frames need no switch of the pond's own
no VLAN    ring: its frames need no switch of the pond's own

VLAN 101   east, 10.21.1.0/24, MTU 1500 (frames of 1518 bytes) or more, 3 access ports, untagged, in no other VLAN
  port  device  name     Mbit/s  hardware address   address
  1     host    east     3500    -                  10.21.1.1
  2     duck    mallard  2500    00:00:5e:00:53:01  10.21.1.11
  3     duck    wigeon   1000    -                  -

VLAN 102   west, MTU 9000 (frames of 9018 bytes), 2 access ports, untagged, in no other VLAN
  port  device  name  Mbit/s  hardware address  address
  4     host    west  2500    -                 -
  5     duck    teal  2500    -                 -

On every port of the switch:
";
        assert_eq!(&text[..expected.len()], expected);
        for setting in [
            "storm control: off\n",
            "flow control: off\n",
            "energy-efficient Ethernet: off\n",
            "spanning tree: off, or edge ports\n",
        ] {
            assert!(text.contains(setting), "{setting}");
        }
    }

    #[test]
    fn a_pond_without_cables_needs_no_switch() {
        let mut pond = Pond::new("demo");
        pond.ports.push(Port::new("lab", "udp:127.0.0.1:7000".parse().expect("a link")));
        let text = text(&table(&pond));
        assert!(text.contains("switch     none: no port of this pond has a cable\n"), "{text}");
        assert!(!text.contains("VLAN 1") && !text.contains("storm"), "{text}");
    }

    #[test]
    fn programs_get_the_same_as_people() {
        let json = serde_json::to_value(table(&pond())).expect("plain data");
        assert_eq!(json["vlans"][0]["ports"][1]["mac"], "00:00:5e:00:53:01");
        assert_eq!(json["vlans"][1]["subnet"], serde_json::Value::Null);
        assert_eq!(json["settings"].as_array().map(Vec::len), Some(SETTINGS.len()));
    }
}
