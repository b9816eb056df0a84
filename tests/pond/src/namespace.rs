//! Network namespaces of the kernel's, whatever is in them: made, entered, and what a test does where they cannot be.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::SystemTime;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Says what is missing for `subject` to be tested. The test passes, but fails with `DUCKPOND_REQUIRE_NET=1`.
pub fn missing<T>(subject: &str, what: &str) -> Option<T> {
    // Not by `println!`, whose lines a passing test keeps to itself.
    let _ = writeln!(std::io::stderr(), "{subject} are not tested: {what}");
    let required = std::env::var("DUCKPOND_REQUIRE_NET").is_ok_and(|value| value == "1");
    assert!(!required, "DUCKPOND_REQUIRE_NET is set, and {what}");
    None
}

/// What was made, or `None` as [`missing`] says it.
pub fn or_missing<T>(subject: &str, made: Result<T, String>) -> Option<T> {
    made.map_or_else(|why| missing(subject, &why), Some)
}

/// A name that no namespace has.
///
/// # Errors
/// A user who may not make namespaces.
pub fn fresh_name() -> Result<String, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root may make network namespaces".into());
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.subsec_nanos());
    let (id, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    Ok(format!("dp-{id:x}-{time:x}-{next}"))
}

/// Makes a namespace in which nothing speaks by itself.
///
/// # Errors
/// What `ip` says.
pub fn add(name: &str) -> Result<(), String> {
    ip(&["netns", "add", name], "")?;
    within(name, silence_ipv6);
    Ok(())
}

/// Runs `act` in a thread that is in a namespace.
pub fn within<T: Send>(namespace: &str, act: impl FnOnce() -> T + Send) -> T {
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

/// Runs `ip`, with lines for its batch mode.
///
/// # Errors
/// What it says, or that it is not there.
pub fn ip(arguments: &[&str], lines: &str) -> Result<(), String> {
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
