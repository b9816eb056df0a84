//! Network namespaces for a pond: real interfaces and bridges of the kernel's, and nothing outside is touched.
//!
//! One namespace for the host, one for the switches, one for each duck. A domain is a bridge that one interface of the host's and one of
//! each of its ducks are plugged into. No interface has an address, and IPv6, which would speak by itself, is off. All go when [`Net`] is dropped.

use link::{Link, Spec};
use wire::frame::ETHERTYPE;

use crate::namespace::{self, ip};

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
        let made = || {
            let net = Net::named(&namespace::fresh_name()?, ports, ducks);
            net.names().try_for_each(|name| namespace::add(name))?;
            net.plug(ducks, mtu)?;
            Ok(net)
        };
        namespace::or_missing("ponds in network namespaces", made())
    }

    fn named(fresh: &str, ports: usize, ducks: usize) -> Net {
        let name = |end: &str| format!("{fresh}-{end}");
        let ducks_names = (0..ports * ducks).map(|duck| name(&format!("duck{duck}"))).collect();
        Net { host: name("host"), switch: name("switch"), ducks: ducks_names, ports }
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
        namespace::within(&self.host, || (0..self.ports).map(open).collect())
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
