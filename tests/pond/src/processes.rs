//! Real ducks: `duckd` processes over UDP on the loopback interface, or over interfaces in network namespaces.
//!
//! A process that was started here is killed here, also when a test panics; nothing else is ever signalled. What the system knows of a process
//! (processor time, memory, threads) is read from `/proc`.

use std::fs::{self, File};
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use decode::{Engine, EngineOptions};
use flock::Flock;
use flock::remote::{self, DuckSpec, DuckState, PondStatus};
use link::{BROADCAST, ETHERNET, Faulty, Header, Link, Udp};
use model::Numerics;
use model::program::Model;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wire::frame::{ETHERTYPE, Frame, Kind};
use wire::key::Key;
use wire::message::{COUNTERS, Counter, Status};

use crate::ducks::{PondOptions, key};
use crate::netns::Net;

/// After this a test that waits has failed. Far above what anything takes on a busy machine.
pub const GUARD: Duration = Duration::from_secs(60);

/// Whether the long suites were asked for.
pub fn long() -> bool {
    std::env::var_os("DUCKPOND_LONG").is_some()
}

/// Tests that measure this process, or keep every processor busy, run one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program `duckd` of this build: built first if it is missing, or older than its sources.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().expect("a running program has a path");
        let profile = test.ancestors().nth(2).expect("a test lies in target/PROFILE/deps");
        let program = profile.join("duckd");
        let age = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
        if age(&program).is_none_or(|built| newest_source() > built) {
            let name = profile.file_name().and_then(|n| n.to_str()).expect("a profile's folder has a name");
            let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
            let mut build = Command::new(cargo);
            build.args([
                "build",
                "--quiet",
                "--package",
                "duckd",
                "--profile",
                if name == "debug" { "dev" } else { name },
            ]);
            build.arg("--target-dir").arg(profile.parent().expect("target"));
            build.current_dir(env!("CARGO_MANIFEST_DIR"));
            let built = build.status().is_ok_and(|status| status.success());
            assert!(built && program.exists(), "{} is missing: run {build:?}", program.display());
        }
        program
    })
}

/// When one of the sources that `duckd` is made of was changed last.
fn newest_source() -> SystemTime {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders: Vec<PathBuf> =
        ["duckd", "node", "wire", "kernels", "fp9"].map(|c| root.join("duck-firmware").join(c).join("src")).into();
    folders.push(root.join("engine/link/src"));
    let mut newest = SystemTime::UNIX_EPOCH;
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => folders.push(entry.path()),
                Ok(data) => newest = newest.max(data.modified().unwrap_or(newest)),
                Err(_) => {}
            }
        }
    }
    newest
}

/// What the system knows of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Processor time of all its threads in the kernel's ticks.
    pub ticks: u64,
    /// Bytes of memory that it really has.
    pub rss: u64,
    /// Threads.
    pub threads: u64,
}

impl Usage {
    /// Of this process.
    pub fn own() -> Usage {
        Usage::of("self").expect("this process has an entry")
    }

    fn of(pid: &str) -> Option<Usage> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Fields after the name, which may contain anything: state is the third of all, user and system time the 14th and 15th.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        Some(Usage { ticks, rss: field("VmRSS:")? << 10, threads: field("Threads:")? })
    }
}

/// A duck as a process. It is killed when dropped.
pub struct Duckd {
    arguments: Vec<String>,
    /// The network namespace that it lives in, if not the test's own.
    namespace: Option<String>,
    log: PathBuf,
    child: Option<Child>,
}

impl Duckd {
    fn new(arguments: Vec<String>, namespace: Option<String>, log: PathBuf) -> Duckd {
        let mut duck = Duckd { arguments, namespace, log, child: None };
        duck.start();
        duck
    }

    /// Starts it, with empty memory, unless it runs.
    pub fn start(&mut self) {
        if self.child.is_some() {
            return;
        }
        let mut command = match &self.namespace {
            // It becomes the program, so that the process is the duck's own.
            Some(name) => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", name]).arg(program());
                ip
            }
            None => Command::new(program()),
        };
        let log = File::options().create(true).append(true).open(&self.log).expect("the test's own folder");
        command.args(&self.arguments).env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")));
    }

    /// `kill -9`: its memory is lost. Returns once it is gone.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only for a child that has been waited for.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops all its threads where they are, until [`Duckd::resume`].
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Ends a pause.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            kill_process(Pid::from_child(child), signal).expect("a child that was not waited for can be signalled");
        }
    }

    /// Whether it runs; one that has ended by itself shows what it said.
    pub fn is_running(&mut self) -> bool {
        let Some(child) = &mut self.child else { return false };
        match child.try_wait() {
            Ok(None) => true,
            ended => panic!("a duck has ended: {ended:?}\n{}", self.said()),
        }
    }

    /// Everything that it has logged.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// What it uses; `None` if it does not run.
    pub fn usage(&self) -> Option<Usage> {
        Usage::of(&self.child.as_ref()?.id().to_string())
    }
}

impl Drop for Duckd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What joins host and ducks.
enum Carrier {
    /// By port: the host's address.
    Udp(Vec<SocketAddr>),
    Net(Net),
}

/// Ducks as processes, in one or more domains.
pub struct Processes {
    /// By port, one after the other.
    pub ducks: Vec<Duckd>,
    addresses: Vec<SocketAddr>,
    options: PondOptions,
    // Below the ducks: namespaces go after those who live in them.
    carrier: Carrier,
    _logs: TempDir,
}

impl Processes {
    /// Over UDP on the loopback interface.
    pub fn udp(options: PondOptions) -> Processes {
        let hosts = free_addresses(options.ports);
        let addresses = free_addresses(options.ports * options.ducks);
        let links = addresses.iter().enumerate().map(|(duck, address)| {
            let host = hosts[duck / options.ducks];
            (format!("udp:{address},{host}"), None)
        });
        let links: Vec<_> = links.collect();
        Processes::start(options, Carrier::Udp(hosts), addresses, links)
    }

    /// Over packet sockets in network namespaces; `None`, said aloud, where these cannot be made.
    pub fn net(options: PondOptions) -> Option<Processes> {
        let net = Net::new(options.ports, options.ducks, options.mtu)?;
        let links = (0..options.ports * options.ducks)
            .map(|duck| (format!("eth:{}", crate::netns::INTERFACE), Some(net.duck(duck).to_owned())))
            .collect();
        Some(Processes::start(options, Carrier::Net(net), Vec::new(), links))
    }

    fn start(
        options: PondOptions,
        carrier: Carrier,
        addresses: Vec<SocketAddr>,
        links: Vec<(String, Option<String>)>,
    ) -> Processes {
        let logs = tempfile::tempdir().expect("a temporary folder");
        let key: String = key().public().0.iter().map(|b| format!("{b:02x}")).collect();
        let (memory, mtu) = (options.memory.to_string(), options.mtu.to_string());
        let ducks = links.into_iter().enumerate().map(|(duck, (link, namespace))| {
            let name = name(duck);
            let log = logs.path().join(&name);
            let arguments = ["--link", &link, "--key", &key, "--id", &name, "--memory", &memory, "--mtu", &mtu];
            let others = ["--cores", "1", "--no-lock", "--huge-pages", "off"];
            let arguments = arguments.into_iter().chain(others).map(str::to_owned).collect();
            Duckd::new(arguments, namespace, log)
        });
        let ducks = ducks.collect();
        Processes { ducks, addresses, options, carrier, _logs: logs }
    }

    /// Options of this pond's host, with fresh links: each call is another start of the same host, once the one before is gone.
    pub fn host(&self) -> remote::Options {
        self.host_at([7; 16], self.links(true))
    }

    /// Another host's options, at other addresses. Packet sockets can be shared; both hear all.
    pub fn other_host(&self, host: [u8; 16]) -> remote::Options {
        self.host_at(host, self.links(false))
    }

    /// As [`Processes::host`], with other faults.
    pub fn host_with_faults(&mut self, faults: &str, seed: u64) -> remote::Options {
        self.options.faults = Some(faults.parse().expect("well-formed faults"));
        self.options.seed = seed;
        self.host()
    }

    fn host_at(&self, host: [u8; 16], links: Vec<Box<dyn Link>>) -> remote::Options {
        let PondOptions { faults, seed, .. } = &self.options;
        let ports = links.into_iter().enumerate().map(|(at, link)| {
            let link = match faults {
                Some(faults) => Box::new(Faulty::new(link, *faults, seed + at as u64)),
                None => link,
            };
            remote::Port::new(format!("port-{at}"), link)
        });
        let ducks = (0..self.ducks.len()).map(|duck| {
            let port = duck / self.options.ducks;
            DuckSpec { name: name(duck), port, mac: None, memory: None, speed: 1.0 }
        });
        remote::Options::new(ports.collect(), ducks.collect(), key(), host)
    }

    /// The host's links by port; `own`: at the addresses that ducks expect it at.
    fn links(&self, own: bool) -> Vec<Box<dyn Link>> {
        match &self.carrier {
            Carrier::Udp(hosts) => hosts
                .iter()
                .enumerate()
                .map(|(port, &host)| {
                    let count = self.options.ducks;
                    let at = if own { host } else { SocketAddr::from(([127, 0, 0, 1], 0)) };
                    self.udp_link(at, &self.addresses[port * count..][..count])
                })
                .collect(),
            Carrier::Net(net) => net.host_links(self.options.mtu),
        }
    }

    fn udp_link(&self, at: SocketAddr, peers: &[SocketAddr]) -> Box<dyn Link> {
        Box::new(Udp::bind(at, peers, None, self.options.mtu).unwrap_or_else(|error| panic!("{error}")))
    }

    /// A link of somebody else's, on the segment of one duck over UDP.
    pub fn stranger(&self, duck: usize) -> Box<dyn Link> {
        self.udp_link(SocketAddr::from(([127, 0, 0, 1], 0)), &self.addresses[duck..=duck])
    }

    /// Asks a duck over UDP for its counters, as anybody can.
    pub fn counter(&self, duck: usize, which: Counter) -> u64 {
        let mut link = self.stranger(duck);
        let started = Instant::now();
        loop {
            send(&mut *link, BROADCAST, wire::Header::new(Kind::AskStatus), &[]);
            link.wait(Some(Duration::from_millis(100)));
            let mut found = None;
            link.rx(&mut |bytes| found = counters(bytes).or(found));
            if let Some(counters) = found {
                return counters[which as usize];
            }
            assert!(started.elapsed() < GUARD, "a duck answers: {}", self.ducks[duck].said());
        }
    }

    /// All must run.
    pub fn assert_running(&mut self) {
        assert!(self.ducks.iter_mut().all(Duckd::is_running), "a duck is missing");
    }
}

/// Counters in an answer about a duck's health.
fn counters(bytes: &[u8]) -> Option<[u64; COUNTERS]> {
    let frame = Frame::check(bytes.get(ETHERNET..)?, wire::crc::native).ok()?;
    let all = frame.payload().get(Status::LEN..)?.as_chunks::<8>().0;
    let all: Vec<u64> = all.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    if frame.kind() == Kind::Status { all.first_chunk().copied() } else { None }
}

/// Sends a frame of the protocol.
pub fn send(link: &mut dyn Link, to: link::Mac, header: wire::Header, payload: &[u8]) {
    let from = link.mac();
    link.tx(&mut |buf| {
        let room = Header { to, from, ethertype: ETHERTYPE }.emit(buf).expect("a link's buffer has room for a header");
        wire::frame::emit(room, header, &[payload], wire::crc::native).map_or(0, |len| ETHERNET + len)
    });
    link.flush();
}

fn name(duck: usize) -> String {
    format!("duck-{duck}")
}

/// Addresses on the loopback interface at which nobody is. All are held at once, so that none is given twice.
fn free_addresses(count: usize) -> Vec<SocketAddr> {
    let sockets: Vec<UdpSocket> =
        (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").expect("the loopback interface has ports left")).collect();
    sockets.iter().map(|socket| socket.local_addr().expect("a bound socket has an address")).collect()
}

/// An engine with ducks behind links, once all that are there are ready.
pub fn engine(model: &Model, numerics: Numerics, options: remote::Options) -> Engine {
    let flock = Flock::remote(model, numerics, options).expect("a pond");
    let options = EngineOptions { numerics, ..EngineOptions::default() };
    let mut engine = Engine::with_flock(model.clone(), flock, &options).expect("an engine");
    engine.flock().as_remote().expect("ducks behind links").wait_ready(&mut |_| true).expect("domains work");
    engine
}

/// How the engine's pond is.
pub fn status(engine: &mut Engine) -> PondStatus {
    engine.flock().as_remote().expect("ducks behind links").status()
}

/// Waits until something holds of the pond.
pub fn wait_for(engine: &mut Engine, what: &str, holds: impl Fn(&PondStatus) -> bool) -> PondStatus {
    let started = Instant::now();
    loop {
        engine.flock().as_remote().expect("ducks behind links").tick().expect("domains work");
        let status = status(engine);
        if holds(&status) {
            return status;
        }
        assert!(started.elapsed() < GUARD, "{what}: {status:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether all ducks compute.
pub fn all_ready(status: &PondStatus) -> bool {
    status.ducks.iter().all(|duck| duck.state == DuckState::Ready)
}

/// A key that is not the pond's.
pub fn wrong_key() -> Key {
    Key::from_seed([9; 32])
}
