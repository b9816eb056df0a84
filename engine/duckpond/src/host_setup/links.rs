//! Interfaces that stay with the kernel, and what this program can drive.

use pond::{LinkKind, Port};

use super::Wanted;
use super::machine::{CAP_NET_RAW, Machine};
use super::report::{Finding, Fix, State};

/// Looks at all of it.
pub fn check(machine: &Machine, wanted: &Wanted, findings: &mut Vec<Finding>) {
    for port in wanted.ports().iter().filter(|port| port.link.kind() == LinkKind::Ethernet) {
        findings.push(interface(machine, port));
    }
    if wanted.has(LinkKind::Ethernet) {
        findings.push(raw(machine));
    }
    let of_dpdk: Vec<&str> =
        wanted.ports().iter().filter(|port| port.link.kind() == LinkKind::Dpdk).map(|port| &*port.name).collect();
    if !of_dpdk.is_empty() {
        findings.push(Finding::new(
            "this program",
            State::Note,
            format!("built without DPDK, so it opens no pond with {}", of_dpdk.join(", ")),
            "the machine can be set up before a program with DPDK is there",
            Vec::new(),
        ));
    }
}

fn interface(machine: &Machine, port: &Port) -> Finding {
    const NAME: &str = "interface";
    let device = port.link.target();
    let folder = format!("/sys/class/net/{device}");
    let new = |state, found: String, why, fix: Fix| {
        Finding::new(NAME, state, format!("port {}, {device}: {found}", port.name), why, vec![fix])
    };
    if !machine.exists(&folder) {
        let others: Vec<String> = machine.names("/sys/class/net").into_iter().filter(|name| name != "lo").collect();
        let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
        let fix = Fix::Do("name one of these in the description, or give the card back to the kernel".into());
        return new(
            State::Missing,
            format!("no such interface; there are {others}"),
            "the port's frames go through it",
            fix,
        );
    }
    let card = machine.link(&format!("{folder}/device"));
    if let (Some(expected), Some(found)) = (port.pci.map(|pci| pci.to_string()), card)
        && expected != found
    {
        let fix = Fix::Do("correct the port's pci or its link in the description".into());
        return new(
            State::Missing,
            format!("it is the card {found}, expected {expected}"),
            "the two are not one card",
            fix,
        );
    }
    let state = machine.text(&format!("{folder}/operstate")).unwrap_or_default();
    if !["up", "unknown"].contains(&&*state) {
        let fix = Fix::Run(format!("ip link set {device} up # and look whether a cable is in it"));
        return new(State::Missing, format!("it is {state}, expected up"), "no frame goes through it like this", fix);
    }
    let mtu = machine.number(&format!("{folder}/mtu")).unwrap_or(0);
    match port.mtu.map(u64::from) {
        Some(wanted) if mtu < wanted => new(
            State::Warning,
            format!("frames of {mtu} bytes, {wanted} described"),
            "weights travel in longer frames where both ends have them",
            Fix::Run(format!("ip link set {device} mtu {wanted}")),
        ),
        _ => Finding::ok(NAME, format!("port {}, {device}: {state}, frames of {mtu} bytes", port.name)),
    }
}

fn raw(machine: &Machine) -> Finding {
    const NAME: &str = "raw frames";
    if machine.user().may(CAP_NET_RAW) {
        return Finding::ok(NAME, "allowed (CAP_NET_RAW)");
    }
    Finding::new(
        NAME,
        State::Missing,
        "not allowed to this user",
        "ports on interfaces send and receive raw Ethernet frames",
        vec![
            Fix::Run("setcap cap_net_raw+ep $(command -v duckpond)".into()),
            Fix::Do("or run it as root; a service has AmbientCapabilities=CAP_NET_RAW in its unit instead".into()),
        ],
    )
}
