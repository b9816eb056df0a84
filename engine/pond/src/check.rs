//! Whether the fields of a description fit each other. Fields are looked at in the order of the file, ports before ducks, and the first one
//! that does not fit is named.

use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::net::Ipv4Addr;

use crate::value::FormError;
use crate::{Duck, LinkKind, MAX_NAME, Pond, PondError, Port, Problem, Size, Subnet};

/// Longest name of a pond.
const MAX_POND_NAME: usize = 64;
/// Highest processor number.
const MAX_CPU: u64 = 1023;
/// What Ethernet carries, to the longest frame of the protocol.
const MTU: (u64, u64) = (wire::frame::MIN_MTU as u64, wire::frame::MAX_FRAME as u64);
/// Mbit/s that an announcement can say.
const DUCK_LINKS: (u64, u64) = (10, u16::MAX as u64);
const MAX_HUGE_PAGES: u64 = 1 << 20;

/// Values that only one field may have, and which has it.
struct Taken<T>(HashMap<T, String>);

impl<T: Eq + Hash> Taken<T> {
    fn new() -> Taken<T> {
        Taken(HashMap::new())
    }

    fn take(&mut self, value: T, shown: impl Display, field: &str) -> Result<(), PondError> {
        match self.0.get(&value) {
            Some(first) => {
                Err(PondError::new(field, Problem::Twice { value: shown.to_string(), first: first.clone() }))
            }
            None => {
                self.0.insert(value, field.into());
                Ok(())
            }
        }
    }
}

fn range(field: impl Into<String>, found: u64, (least, most): (u64, u64)) -> Result<(), PondError> {
    match (least..=most).contains(&found) {
        true => Ok(()),
        false => Err(PondError::new(field, Problem::Range { found, least, most })),
    }
}

fn name(field: &str, name: &str, most: usize) -> Result<(), PondError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if (1..=most).contains(&name.len()) && name.bytes().all(plain) {
        return Ok(());
    }
    let expected = format!("a name: 1 to {most} letters, digits, hyphens, underscores or dots");
    Err(PondError::new(field, Problem::Form(FormError::new(name, expected).to_string())))
}

/// Absolute, and nothing in it that a shell or a table would take for anything else.
fn is_plain_path(path: &std::path::Path) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-_.".contains(byte);
    path.is_absolute() && path.as_os_str().as_encoded_bytes().iter().all(plain)
}

fn list<T: Display>(values: impl Iterator<Item = T>) -> String {
    let shown: Vec<_> = values.map(|value| value.to_string()).collect();
    if shown.is_empty() { "none".into() } else { shown.join(", ") }
}

impl Pond {
    /// Whether the description is consistent.
    ///
    /// # Errors
    /// The first field that does not fit the ones before it.
    pub fn check(&self) -> Result<(), PondError> {
        self.check_unfinished()?;
        for (number, port) in self.ports.iter().enumerate() {
            if self.ducks_of(&port.name).next().is_none() {
                return Err(PondError::new(format!("ports[{number}]"), Problem::NoDucks { port: port.name.clone() }));
            }
        }
        Ok(())
    }

    /// Whether all that is there fits together, though ports may still be without ducks.
    ///
    /// # Errors
    /// As [`Pond::check`].
    pub fn check_unfinished(&self) -> Result<(), PondError> {
        name("name", &self.name, MAX_POND_NAME)?;
        self.check_host()?;
        if self.ports.is_empty() {
            return Err(PondError::new("ports", Problem::NoPorts));
        }
        let mut addresses = Taken::new();
        self.check_ports(&mut addresses)?;
        self.check_ducks(&mut addresses)
    }

    /// Whether every duck can have a part of a model whose layers have so many units.
    ///
    /// # Errors
    /// Names `ducks` and both numbers.
    pub fn check_model(&self, units: u32) -> Result<(), PondError> {
        let found = self.ducks.len();
        match found <= units as usize {
            true => Ok(()),
            false => Err(PondError::new("ducks", Problem::TooManyDucks { found, units })),
        }
    }

    fn check_host(&self) -> Result<(), PondError> {
        for (field, path) in
            [("model", &self.model), ("key", &self.key), ("kernels", &self.kernels), ("netboot", &self.netboot)]
        {
            if path.as_ref().is_some_and(|path| path.as_os_str().is_empty()) {
                return Err(PondError::new(field, Problem::Form("the path is empty".into())));
            }
        }
        let mut isolated = Taken::new();
        for (number, &cpu) in self.isolated.iter().flatten().enumerate() {
            let field = format!("isolated[{number}]");
            range(&field, cpu.into(), (0, MAX_CPU))?;
            isolated.take(cpu, cpu, &field)?;
        }
        let mut ids = Taken::new();
        for (number, &id) in self.vfio_ids.iter().enumerate() {
            ids.take(id, id, &format!("vfio_ids[{number}]"))?;
        }
        let Some(pages) = &self.huge_pages else { return Ok(()) };
        if ![Size(2 << 20), Size(1 << 30)].contains(&pages.size) {
            let reason = format!("{} is no size of a page, expected 2MiB or 1GiB", pages.size);
            return Err(PondError::new("huge_pages.size", Problem::Form(reason)));
        }
        range("huge_pages.count", pages.count.into(), (1, MAX_HUGE_PAGES))?;
        match &pages.mount {
            // It is printed as part of commands.
            Some(mount) if !is_plain_path(mount) => {
                let reason =
                    format!("{:?} is not an absolute path of letters, digits and ._-", mount.display().to_string());
                Err(PondError::new("huge_pages.mount", Problem::Form(reason)))
            }
            _ => Ok(()),
        }
    }

    fn check_ports(&self, addresses: &mut Taken<Ipv4Addr>) -> Result<(), PondError> {
        let (mut names, mut links, mut cards, mut lcores) = (Taken::new(), Taken::new(), Taken::new(), Taken::new());
        let mut subnets: Vec<(String, Subnet)> = Vec::new();
        for (number, port) in self.ports.iter().enumerate() {
            let at = |name: &str| format!("ports[{number}].{name}");
            name(&at("name"), &port.name, MAX_NAME)?;
            names.take(&port.name, &port.name, &at("name"))?;
            links.take(&port.link, &port.link, &at("link"))?;
            match (port.pci, port.link.pci()) {
                (Some(pci), Some(link)) if pci != link => {
                    return Err(PondError::new(at("pci"), Problem::OtherCard { pci, link }));
                }
                (Some(pci), _) => cards.take(pci, pci, &at("pci"))?,
                (None, Some(pci)) => cards.take(pci, pci, &at("link"))?,
                (None, None) => {}
            }
            if let Some(lcore) = port.lcore {
                range(at("lcore"), lcore.into(), (0, MAX_CPU))?;
                lcores.take(lcore, lcore, &at("lcore"))?;
                if let Some(isolated) = self.isolated.as_ref().filter(|isolated| !isolated.contains(&lcore)) {
                    let isolated = list(isolated.iter());
                    return Err(PondError::new(at("lcore"), Problem::NotIsolated { lcore, isolated }));
                }
            }
            if let Some(subnet) = port.subnet {
                if let Some((first, other)) = subnets.iter().find(|(_, other)| other.overlaps(subnet)) {
                    let problem = Problem::Overlap { subnet, first: first.clone(), other: *other };
                    return Err(PondError::new(at("subnet"), problem));
                }
                subnets.push((at("subnet"), subnet));
            }
            if let Some(address) = port.host_address() {
                check_address(address, port, &at("address"))?;
                addresses.take(address, address, &at("address"))?;
            }
            if let Some(mtu) = port.mtu {
                range(at("mtu"), mtu.into(), MTU)?;
            }
        }
        Ok(())
    }

    fn check_ducks(&self, addresses: &mut Taken<Ipv4Addr>) -> Result<(), PondError> {
        let (mut names, mut macs) = (Taken::new(), Taken::new());
        for (number, duck) in self.ducks.iter().enumerate() {
            let at = |name: &str| format!("ducks[{number}].{name}");
            name(&at("name"), &duck.name, MAX_NAME)?;
            names.take(&duck.name, &duck.name, &at("name"))?;
            let Some(port) = self.port(&duck.port) else {
                let (found, known) = (crate::error::one_line(&duck.port), list(self.ports.iter().map(|p| &p.name)));
                return Err(PondError::new(at("port"), Problem::UnknownPort { found, known }));
            };
            if let Some(mac) = duck.mac {
                if !mac.is_unicast() {
                    let reason = format!("{mac} is not the address of a single device");
                    return Err(PondError::new(at("mac"), Problem::Form(reason)));
                }
                macs.take(mac, mac, &at("mac"))?;
            }
            check_duck_address(duck, port, &at, addresses)?;
            if duck.memory == Some(Size(0)) {
                return Err(PondError::new(at("memory"), Problem::Form("a duck without memory holds nothing".into())));
            }
            range(at("link"), duck.link.into(), DUCK_LINKS)?;
        }
        Ok(())
    }
}

fn check_duck_address(
    duck: &Duck,
    port: &Port,
    at: &dyn Fn(&str) -> String,
    addresses: &mut Taken<Ipv4Addr>,
) -> Result<(), PondError> {
    let Some(address) = duck.address else { return Ok(()) };
    check_address(address, port, &at("address"))?;
    addresses.take(address, address, &at("address"))?;
    if duck.mac.is_none() && port.link.kind() != LinkKind::Udp {
        return Err(PondError::new(at("mac"), Problem::AddressNeedsMac { address }));
    }
    Ok(())
}

/// Whether a device behind `port` may have the address.
fn check_address(address: Ipv4Addr, port: &Port, field: &str) -> Result<(), PondError> {
    let name = || port.name.clone();
    let problem = match port.subnet {
        None => Problem::NoSubnet { address, port: name() },
        Some(subnet) if !subnet.contains(address) => Problem::Outside { address, subnet, port: name() },
        Some(subnet) if address == subnet.network() => Problem::Reserved { address, what: "network", subnet },
        Some(subnet) if address == subnet.broadcast() => Problem::Reserved { address, what: "broadcast", subnet },
        Some(_) => return Ok(()),
    };
    Err(PondError::new(field, problem))
}
