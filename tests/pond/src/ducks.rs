//! Real ducks in threads of the test, behind links in memory: the same node, session and kernels as the program `duckd`.

use std::sync::mpsc;
use std::thread::JoinHandle;

use duckd::{Exit, HugePages, Monitor, Node, Options, Stop};
use flock::remote::{self, DuckSpec, identity};
use link::{Faults, Faulty, Hub, Link, Mac};
use wire::key::Key;

/// The pond's key in all tests.
pub fn key() -> Key {
    Key::from_seed([42; 32])
}

/// How a test's pond is.
#[derive(Clone, Debug)]
pub struct PondOptions {
    /// Domains.
    pub ports: usize,
    /// Ducks in each.
    pub ducks: usize,
    /// Bytes that each duck can hold.
    pub memory: u64,
    /// What the host's links do to frames, both ways.
    pub faults: Option<Faults>,
    /// Of the faults.
    pub seed: u64,
    /// Longest payload.
    pub mtu: usize,
}

impl Default for PondOptions {
    fn default() -> Self {
        PondOptions { ports: 1, ducks: 2, memory: 64 << 20, faults: None, seed: 1, mtu: 1500 }
    }
}

/// A duck that runs.
struct Running {
    stop: Stop,
    thread: JoinHandle<Exit>,
    monitor: Monitor,
}

impl Running {
    fn start(port: link::Port, name: &str, memory: u64) -> Running {
        let options = Options {
            memory,
            lock: false,
            huge_pages: HugePages::Off,
            ..Options::new(identity(name).expect("a short name"), key().public())
        };
        let (tell, told) = mpsc::channel();
        let stop = Stop::new();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            // A node lives on one thread.
            let mut node = Node::new(Box::new(port), options).expect("memory for a small duck");
            tell.send(node.monitor()).expect("the test waits for it");
            node.run(&stopped)
        });
        let monitor = told.recv().expect("the node was made");
        Running { stop, thread, monitor }
    }

    fn end(self) {
        self.stop.trigger();
        self.thread.join().expect("a duck does not panic");
    }
}

/// A duck beside the pond's; it ends with this.
pub struct Extra(Option<Running>);

impl Drop for Extra {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Running::end);
    }
}

/// Ducks of several domains.
pub struct Ducks {
    options: PondOptions,
    hubs: Vec<Hub>,
    running: Vec<Option<Running>>,
    hosts: u8,
}

impl Ducks {
    /// Starts them all.
    pub fn start(options: PondOptions) -> Ducks {
        let hubs = (0..options.ports).map(|_| Hub::new()).collect();
        let running = (0..options.ports * options.ducks).map(|_| None).collect();
        let mut ducks = Ducks { options, hubs, running, hosts: 0 };
        (0..ducks.running.len()).for_each(|duck| ducks.boot(duck));
        ducks
    }

    fn name(duck: usize) -> String {
        format!("duck-{duck}")
    }

    /// Hardware address of a duck.
    pub fn mac(duck: usize) -> Mac {
        Mac([2, 0, 0, 0, 1, duck as u8])
    }

    /// Starts a duck with empty memory.
    pub fn boot(&mut self, duck: usize) {
        let memory = self.options.memory;
        self.boot_as(duck, &Ducks::name(duck), memory);
    }

    /// The same, under another name and with another amount of memory.
    pub fn boot_as(&mut self, duck: usize, name: &str, memory: u64) {
        let hub = &self.hubs[duck / self.options.ducks];
        self.running[duck] = Some(Running::start(hub.port(Ducks::mac(duck), self.options.mtu), name, memory));
    }

    /// A duck on the first port that is none of the pond's.
    pub fn extra(&self, name: &str, memory: u64) -> Extra {
        Extra(Some(Running::start(self.hubs[0].port(Ducks::mac(200), self.options.mtu), name, memory)))
    }

    /// Ends a duck in the middle of whatever it does; its memory is lost.
    pub fn kill(&mut self, duck: usize) {
        self.running[duck].take().into_iter().for_each(Running::end);
    }

    /// The switch of a domain, for others who are on the segment.
    pub fn hub(&self, port: usize) -> &Hub {
        &self.hubs[port]
    }

    /// What a duck tells of itself.
    pub fn monitor(&self, duck: usize) -> Option<&Monitor> {
        self.running[duck].as_ref().map(|running| &running.monitor)
    }

    /// A host's options for this pond, with fresh links: each call is another start of the same host.
    pub fn host(&mut self) -> remote::Options {
        self.host_with([7; 16], key())
    }

    /// A host one of whose ports delays every frame.
    pub fn host_delayed(&mut self, port: usize, delay: std::time::Duration) -> remote::Options {
        let mut options = self.host();
        let faults = Faults { delay, ..Faults::default() };
        let inner = std::mem::replace(&mut options.ports[port].link, Box::new(Hub::new().port(Mac([2; 6]), 1500)));
        options.ports[port].link = Box::new(Faulty::new(inner, faults, 1));
        options
    }

    /// Another host's options, or one with another key.
    pub fn host_with(&mut self, host: [u8; 16], key: Key) -> remote::Options {
        self.hosts += 1;
        let PondOptions { faults, seed, mtu, .. } = self.options.clone();
        let ports = (0..self.hubs.len())
            .map(|at| {
                let port: Box<dyn Link> = Box::new(self.hubs[at].port(Mac([2, 0, 0, 0, 0, self.hosts]), mtu));
                let link = match &faults {
                    Some(faults) => Box::new(Faulty::new(port, *faults, seed + at as u64)),
                    None => port,
                };
                remote::Port::new(format!("port-{at}"), link)
            })
            .collect();
        let ducks = (0..self.running.len())
            .map(|duck| DuckSpec {
                name: Ducks::name(duck),
                port: duck / self.options.ducks,
                mac: None,
                memory: None,
                speed: 1.0,
            })
            .collect();
        remote::Options::new(ports, ducks, key, host)
    }
}

impl Drop for Ducks {
    fn drop(&mut self) {
        (0..self.running.len()).for_each(|duck| self.kill(duck));
    }
}
