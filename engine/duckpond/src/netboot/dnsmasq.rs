//! The configuration of dnsmasq, for ports that stay with the kernel.

use std::fmt::Write;
use std::path::Path;

use pond::{LinkKind, Pond, Port};

use super::{BIOS, EFI};

/// The whole file, for images in `folder`; `None` if no port can be served: one needs an interface of the kernel's and a subnet.
pub fn text(pond: &Pond, folder: &Path) -> Option<String> {
    let ports: Vec<_> = pond.ports.iter().filter(|port| port.link.kind() == LinkKind::Ethernet).collect();
    let served: Vec<_> = ports.into_iter().filter(|port| port.subnet.is_some()).collect();
    if served.is_empty() {
        return None;
    }
    let mut text = format!(
        "# Addresses and firmware for the ducks of {} whose ports stay with the kernel.\n\
         # Written by `duckpond netboot`; written again when the description changes.\n\
         # No names are served, and no router is announced.\n\
         port=0\nbind-interfaces\ndhcp-option=option:router\ndhcp-option=option:dns-server\n\n",
        pond.name
    );
    for port in served {
        text += &port_text(pond, port);
    }
    let mut line = |line: &str| writeln!(text, "{line}").expect("to a string");
    line("# Which file, by the client's architecture (RFC 4578): a PC's BIOS is 0, 64-bit UEFI 7 or 9.");
    line("dhcp-match=set:bios,option:client-arch,0");
    line("dhcp-match=set:efi64,option:client-arch,7");
    line("dhcp-match=set:efi64,option:client-arch,9");
    line(&format!("dhcp-boot=tag:bios,{BIOS}"));
    line(&format!("dhcp-boot=tag:efi64,{EFI}"));
    line("enable-tftp");
    line(&format!("tftp-root={}", folder.display()));
    Some(text)
}

fn port_text(pond: &Pond, port: &Port) -> String {
    let Some(subnet) = port.subnet else { return String::new() };
    let interface = port.link.target();
    let mut text = format!("# {}", port.name);
    if let Some(address) = port.host_address() {
        write!(text, ": ip address add {address}/{} dev {interface}", subnet.prefix()).expect("to a string");
    }
    write!(text, "\ninterface={interface}\ndhcp-range={},static,{},24h\n", subnet.network(), subnet.mask())
        .expect("to a string");
    for duck in pond.ducks_of(&port.name) {
        if let (Some(mac), Some(address)) = (duck.mac, duck.address) {
            writeln!(text, "dhcp-host={mac},{address},{}", duck.name).expect("to a string");
        }
    }
    text + "\n"
}
