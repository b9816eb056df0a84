//! The boot service of a port, out of a pond's description.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

use boot::{BIOS as BIOS_PC, BootFile, Config, EFI_X64, Files, Lease, Service};
use link::{Link, Mac};
use pond::{Pond, Port};

use super::{BIOS, EFI, NetbootError};
use crate::limited::read_bytes;

/// Largest image that is kept in memory to be given out.
const LARGEST: u64 = 64 << 20;

/// The images of the description's folder; `None` if it names none.
///
/// # Errors
/// A folder without images.
pub fn images(pond: &Pond) -> Result<Option<Files>, NetbootError> {
    let Some(folder) = pond.netboot_folder() else { return Ok(None) };
    let mut files = Files::new();
    for name in [EFI, BIOS] {
        let path = folder.join(name);
        let bytes = read_bytes(&path, LARGEST).map_err(|source| NetbootError::Image { path, source })?;
        files.insert(name.into(), bytes.into());
    }
    Ok(Some(files))
}

/// A service for the ducks behind a port, and for `strangers` if wanted; `None` for a port without a subnet.
///
/// # Errors
/// Addresses that do not fit each other, by the port's name.
pub fn service(
    pond: &Pond,
    port: &Port,
    link: &dyn Link,
    files: &Files,
    strangers: bool,
) -> Result<Option<Service>, NetbootError> {
    let (Some(subnet), Some(address)) = (port.subnet, port.host_address()) else { return Ok(None) };
    let mut taken: BTreeSet<Ipv4Addr> = pond.ducks_of(&port.name).filter_map(|duck| duck.address).collect();
    taken.insert(address);
    // Ducks without an address of their own get the next that nobody has, in the order of their rows.
    let all = subnet.first().to_bits()..subnet.broadcast().to_bits();
    let mut free = all.map(Ipv4Addr::from_bits).filter(|address| !taken.contains(address));
    let mut leases = Vec::new();
    for duck in pond.ducks_of(&port.name) {
        if let Some(mac) = duck.mac
            && let Some(address) = duck.address.or_else(|| free.next())
        {
            let name: Arc<str> = duck.name.as_str().into();
            leases.push(Lease { mac: Mac(mac.0), address, name, text: "".into() });
        }
    }
    // Strangers get what is above all others.
    let last = leases.iter().map(|lease| lease.address).chain(taken.iter().copied()).max().unwrap_or(address);
    let above = Ipv4Addr::from_bits(last.to_bits() + 1)..=Ipv4Addr::from_bits(subnet.broadcast().to_bits() - 1);
    let adopt = Some(above).filter(|above| strangers && !above.is_empty());
    let file = |architecture: u16, name: &str| BootFile { architecture, name: name.into() };
    let config = Config {
        mac: link.mac(),
        mtu: link.mtu().min(1_500),
        address,
        prefix: subnet.prefix(),
        leases,
        adopt,
        files: files.clone(),
        boot_files: EFI_X64.iter().map(|&a| file(a, EFI)).chain([file(BIOS_PC, BIOS)]).collect(),
    };
    let service = Service::new(config);
    service.map(Some).map_err(|source| NetbootError::Service { port: port.name.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use link::Hub;

    fn pond() -> Pond {
        Pond::from_toml(
            "name = 'p'\nnetboot = 'boot'\n[[ports]]\nname = 'a'\nlink = 'eth:a'\nsubnet = '10.21.1.0/29'\n\
             [[ports]]\nname = 'b'\nlink = 'eth:b'\n\
             [[ducks]]\nname = 'one'\nport = 'a'\nmac = '02:00:00:00:01:01'\n\
             [[ducks]]\nname = 'two'\nport = 'a'\nmac = '02:00:00:00:01:02'\naddress = '10.21.1.2'\n\
             [[ducks]]\nname = 'three'\nport = 'a'\n\
             [[ducks]]\nname = 'four'\nport = 'b'\nmac = '02:00:00:00:01:04'\n",
        )
        .expect("well-formed")
    }

    #[test]
    fn only_ports_with_a_subnet_are_served_and_missing_images_are_named() {
        let (pond, hub) = (pond(), Hub::new());
        let port = hub.port(Mac([2, 0, 0, 0, 0, 1]), 1_500);
        let files: Files = [EFI, BIOS].map(|name| (name.into(), Arc::from(&b"image"[..]))).into();
        let served = |i: usize| service(&pond, &pond.ports[i], &port, &files, i == 0).expect("it fits");
        assert_eq!(served(0).map(|s| s.address()), Some(Ipv4Addr::new(10, 21, 1, 1)));
        assert!(served(1).is_none());
        let error = images(&pond).expect_err("there is no such folder").to_string();
        assert!(error.contains("boot/duck.efi"), "{error}");
    }
}
