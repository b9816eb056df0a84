//! Network namespaces for a pond: real interfaces and bridges of the kernel's, and nothing outside is touched.
//!
//! One namespace for the host, one for the switches, one for each duck. A domain is a bridge that one interface of the host's and one of
//! each of its ducks are plugged into. No interface has an address, and IPv6, which would speak by itself, is off. All go when [`Net`] is dropped.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::SystemTime;

use link::{Link, Spec};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use wire::frame::ETHERTYPE;

/// The interface's name in each duck's namespace; the host's is followed by its port's number.
pub const INTERFACE: &str = "dp0";

/// The namespaces of a pond.
pub struct Net {
    host: String,
    switch: String,
    ducks: Vec<String>,
    ports: usize,
}

impl Net {
    /// So many domains of so many ducks. `None`, said aloud, where this machine or user cannot; then a test that `DUCKPOND_REQUIRE_NET=1`
    /// demands fails.
    pub fn new(ports: usize, ducks: usize, mtu: usize) -> Option<Net> {
        if !rustix::process::geteuid().is_root() {
            return missing("only root may make network namespaces");
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        let (id, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = |end: &str| format!("dp-{id:x}-{time:x}-{next}-{end}");
        let ducks_names = (0..ports * ducks).map(|duck| name(&format!("duck{duck}"))).collect();
        let net = Net { host: name("host"), switch: name("switch"), ducks: ducks_names, ports };
        for name in net.names() {
            if let Err(why) = ip(&["netns", "add", name], "") {
                return missing(&why);
            }
            net.within(name, silence_ipv6);
        }
        if let Err(why) = net.plug(ducks, mtu) {
            return missing(&why);
        }
        Some(net)
    }

    fn names(&self) -> impl Iterator<Item = &String> {
        [&self.host, &self.switch].into_iter().chain(&self.ducks)
    }

    /// Makes bridges and cables.
    fn plug(&self, ducks: usize, mtu: usize) -> Result<(), String> {
        let mut batch = String::new();
        let mut ends = Vec::new();
        for port in 0..self.ports {
            batch += &format!("link add br{port} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n");
            batch += &format!("link set br{port} mtu {mtu} up\n");
            ends.push((
                port,
                format!("h{port}"),
                format!("{INTERFACE}{port}"),
                format!("02:00:00:00:00:{port:02x}"),
                &self.host,
            ));
        }
        for (duck, name) in self.ducks.iter().enumerate() {
            let mac = format!("02:00:00:00:01:{duck:02x}");
            ends.push((duck / ducks, format!("d{duck}"), INTERFACE.to_owned(), mac, name));
        }
        for (port, near, far, mac, namespace) in &ends {
            batch += &format!(
                "link add {near} mtu {mtu} type veth peer name {far} address {mac} mtu {mtu} netns {namespace}\n\
                 link set {near} master br{port} up\n"
            );
        }
        ip(&["-n", &self.switch, "-batch", "-"], &batch)?;
        ends.iter().try_for_each(|(_, _, far, _, namespace)| ip(&["-n", namespace, "link", "set", far, "up"], ""))
    }

    /// The namespace of a duck.
    pub fn duck(&self, duck: usize) -> &str {
        &self.ducks[duck]
    }

    /// Packet sockets on the host's interfaces, by port. They stay in the host's namespace wherever they are used.
    pub fn host_links(&self, mtu: usize) -> Vec<Box<dyn Link>> {
        let open = |port| {
            let link = Spec::Interface(format!("{INTERFACE}{port}")).open(ETHERTYPE, Some(mtu));
            link.unwrap_or_else(|error| panic!("{error}"))
        };
        self.within(&self.host, || (0..self.ports).map(open).collect())
    }

    /// Runs `act` in a thread that is in a namespace.
    fn within<T: Send>(&self, namespace: &str, act: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{namespace}")).expect("`ip netns` has made it");
        let enter = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            act()
        };
        thread::scope(|scope| scope.spawn(enter).join().expect("it does not panic"))
    }
}

/// Says what is missing.
fn missing(what: &str) -> Option<Net> {
    // Not by `println!`, whose lines a passing test keeps to itself.
    let _ = writeln!(std::io::stderr(), "ponds in network namespaces are not tested: {what}");
    let required = std::env::var("DUCKPOND_REQUIRE_NET").is_ok_and(|value| value == "1");
    assert!(!required, "DUCKPOND_REQUIRE_NET is set, and {what}");
    None
}

fn silence_ipv6() {
    for which in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
        // A kernel without IPv6 has no such file, and needs none.
        if let Ok(mut file) = File::options().write(true).open(path) {
            file.write_all(b"1").expect("root may turn IPv6 off in its own namespace");
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // A namespace lives as long as a socket in it; the cables must not.
        for port in 0..self.ports {
            let _ = ip(&["-n", &self.switch, "link", "del", &format!("h{port}")], "");
        }
        for name in self.names() {
            let _ = ip(&["netns", "del", name], "");
        }
    }
}

/// Runs `ip`, with lines for its batch mode.
fn ip(arguments: &[&str], lines: &str) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let failed = |error| format!("`ip` (Debian package iproute2): {error}");
    let mut child = command.spawn().map_err(failed)?;
    // One that ends before it has read all says why.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(lines.as_bytes()));
    let output = child.wait_with_output().map_err(failed)?;
    let said = || format!("`ip {}` says: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    output.status.success().then_some(()).ok_or_else(said)
}
