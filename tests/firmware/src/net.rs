//! One broadcast domain of the kernel's for machines, programs and an engine's link: a bridge in a network namespace of its own.
//!
//! The host's end is an interface without an address, so no kernel answers behind it. All goes when [`Net`] is dropped.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use link::{Link, Spec};
use pond_tests::namespace::{self, ip};

/// What is not tested where networks cannot be made.
const SUBJECT: &str = "machines on a network";
/// The host's interface.
const HOST: &str = "host0";
/// A program's interface in a namespace of its own.
pub const INTERFACE: &str = "eth0";

/// A bridge and what is plugged into it.
pub struct Net {
    name: String,
    /// Namespaces of programs.
    others: Mutex<Vec<String>>,
    /// How many things were plugged in.
    plugs: AtomicU32,
}

/// Whether all of these programs are there: their names, and the Debian packages that have them. If not, says so as [`missing`](namespace::missing) does.
pub fn has_programs(programs: &[(&str, &str)]) -> bool {
    let folders = || std::env::var_os("PATH").unwrap_or_default();
    let found = |name: &str| std::env::split_paths(&folders()).any(|folder| folder.join(name).exists());
    let lost: Vec<_> = programs.iter().filter(|(name, _)| !found(name)).collect();
    if lost.is_empty() {
        return true;
    }
    let lost: Vec<_> = lost.iter().map(|(name, package)| format!("{name} (Debian package {package})")).collect();
    namespace::missing::<()>(SUBJECT, &format!("{} missing", lost.join(", "))).is_some()
}

impl Net {
    /// A bridge with the host's interface. `None`, said aloud, where this machine or user cannot; then a test that
    /// `DUCKPOND_REQUIRE_NET=1` demands fails.
    pub fn new() -> Option<Net> {
        let made = || {
            let name = namespace::fresh_name()?;
            let net = Net { name, others: Mutex::default(), plugs: AtomicU32::new(0) };
            namespace::add(&net.name)?;
            let batch = format!(
                "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set br0 up\n\
                 link add plug type veth peer name {HOST} address 02:00:00:00:00:01\n\
                 link set plug master br0 up\nlink set {HOST} up\n"
            );
            ip(&["-n", &net.name, "-batch", "-"], &batch)?;
            Ok(net)
        };
        namespace::or_missing(SUBJECT, made())
    }

    /// The namespace with the bridge and the machines' interfaces.
    pub fn namespace(&self) -> &str {
        &self.name
    }

    /// Plugs a tap interface in, for one machine, and returns its name.
    ///
    /// # Panics
    /// If the kernel has no taps: a test that needs machines needs them.
    pub fn tap(&self) -> String {
        let name = format!("tap{}", self.plugs.fetch_add(1, Ordering::Relaxed));
        let batch = format!("tuntap add {name} mode tap\nlink set {name} master br0 up\n");
        ip(&["-n", &self.name, "-batch", "-"], &batch).unwrap_or_else(|why| panic!("{why}"));
        name
    }

    /// Plugs in a namespace of a program's own, whose [`INTERFACE`] has that hardware address, and returns the namespace.
    ///
    /// # Panics
    /// If the kernel refuses what it has allowed before.
    pub fn program(&self, mac: &str) -> String {
        let plug = format!("prog{}", self.plugs.fetch_add(1, Ordering::Relaxed));
        let name = format!("{}-{plug}", self.name);
        let batch = format!(
            "link add {plug} type veth peer name {INTERFACE} address {mac} netns {name}\nlink set {plug} master br0 up\n"
        );
        let made = namespace::add(&name).and_then(|()| ip(&["-n", &self.name, "-batch", "-"], &batch));
        let made = made.and_then(|()| ip(&["-n", &name, "link", "set", INTERFACE, "up"], ""));
        made.unwrap_or_else(|why| panic!("{why}"));
        self.others.lock().expect("nobody panics with it").push(name.clone());
        name
    }

    /// The host's link, for frames of these types. It stays in its namespace wherever it is used.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn host(&self, ethertypes: &[u16]) -> Box<dyn Link> {
        let open = || Spec::Interface(HOST.into()).open_for(ethertypes, Some(1500));
        namespace::within(&self.name, open).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // A namespace lives as long as a socket in it; the cables must not.
        let _ = ip(&["-n", &self.name, "link", "del", "br0"], "");
        let _ = ip(&["-n", &self.name, "link", "del", "plug"], "");
        let others = self.others.get_mut().map(std::mem::take).unwrap_or_default();
        for name in others.iter().chain([&self.name]) {
            let _ = ip(&["netns", "del", name], "");
        }
    }
}
