//! One broadcast domain of the kernel's for machines, programs and an engine's link: a bridge in a network namespace of its own.
//!
//! The host's end is an interface without an address, so no kernel answers behind it. All goes when [`Net`] is dropped.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::SystemTime;

use link::{Link, Spec};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

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

/// Says what is missing for a test. The test passes, but fails with `DUCKPOND_REQUIRE_NET=1`.
pub fn missing<T>(what: &str) -> Option<T> {
    // Not by `println!`, whose lines a passing test keeps to itself.
    let _ = writeln!(std::io::stderr(), "machines on a network are not tested: {what}");
    let required = std::env::var("DUCKPOND_REQUIRE_NET").is_ok_and(|value| value == "1");
    assert!(!required, "DUCKPOND_REQUIRE_NET is set, and {what}");
    None
}

/// Whether all of these programs are there: their names, and the Debian packages that have them. If not, says so as [`missing`] does.
pub fn has_programs(programs: &[(&str, &str)]) -> bool {
    let folders = || std::env::var_os("PATH").unwrap_or_default();
    let found = |name: &str| std::env::split_paths(&folders()).any(|folder| folder.join(name).exists());
    let lost: Vec<_> = programs.iter().filter(|(name, _)| !found(name)).collect();
    if lost.is_empty() {
        return true;
    }
    let lost: Vec<_> = lost.iter().map(|(name, package)| format!("{name} (Debian package {package})")).collect();
    missing::<()>(&format!("{} missing", lost.join(", "))).is_some()
}

impl Net {
    /// A bridge with the host's interface. `None`, said aloud, where this machine or user cannot; then a test that
    /// `DUCKPOND_REQUIRE_NET=1` demands fails.
    pub fn new() -> Option<Net> {
        if !rustix::process::geteuid().is_root() {
            return missing("only root may make network namespaces");
        }
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
        let (id, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let net =
            Net { name: format!("dp-{id:x}-{time:x}-{next}"), others: Mutex::default(), plugs: AtomicU32::new(0) };
        let batch = format!(
            "link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0\nlink set br0 up\n\
             link add plug type veth peer name {HOST} address 02:00:00:00:00:01\n\
             link set plug master br0 up\nlink set {HOST} up\n"
        );
        match net.add_namespace(&net.name).and_then(|()| ip(&["-n", &net.name, "-batch", "-"], &batch)) {
            Ok(()) => Some(net),
            Err(why) => missing(&why),
        }
    }

    fn add_namespace(&self, name: &str) -> Result<(), String> {
        ip(&["netns", "add", name], "")?;
        within(name, silence_ipv6);
        Ok(())
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
        let made = self.add_namespace(&name).and_then(|()| ip(&["-n", &self.name, "-batch", "-"], &batch));
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
        within(&self.name, open).unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Runs `act` in a thread that is in a namespace.
fn within<T: Send>(namespace: &str, act: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{namespace}")).expect("`ip netns` has made it");
    let enter = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
        act()
    };
    thread::scope(|scope| scope.spawn(enter).join().expect("it does not panic"))
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
        let _ = ip(&["-n", &self.name, "link", "del", "br0"], "");
        let _ = ip(&["-n", &self.name, "link", "del", "plug"], "");
        let others = self.others.get_mut().map(std::mem::take).unwrap_or_default();
        for name in others.iter().chain([&self.name]) {
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
