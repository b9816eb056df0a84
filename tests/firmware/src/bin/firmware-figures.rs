//! Measures the bare-metal duck under QEMU and prints a table: sizes, time from power-on to the first announcement, steps without work, and
//! the instructions between the last input and the first output of such a step.
//!
//! `cargo run --release -p firmware-tests --bin firmware-figures`. The figures under emulation say what software does, not how fast a mini PC is.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use duck_tests::{Host, Model, StepData, key};
use duckd::{HugePages, Node, Options, Stop};
use firmware_tests::firmware::{Firmware, command_line, firmware};
use firmware_tests::native::Native;
use firmware_tests::qemu::{Card, Machine, Nic, Start, Wire};
use kernels::tree::Node as Subtree;
use kernels::{Core, NoHooks};
use link::{Hub, Link, Mac, Udp};
use wire::frame::Kind;
use wire::frozen::identity;
use wire::limits::{Limits, Mode};

const PATIENCE: Duration = Duration::from_secs(120);
const DUCK: Mac = Mac([2, 0, 0, 0, 0, 7]);
const HOST: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Steps of each measurement.
const STEPS: u32 = 200;
/// Virtual nanoseconds of an instruction: 2^7, so that a capture's microseconds tell them to eight.
const SHIFT: u32 = 7;

/// A layer whose input is `hidden` values; one lane, two of eight experts.
fn limits(hidden: u32, mode: Mode) -> Limits {
    Limits {
        hidden,
        layers: 1,
        slices: 1,
        experts: 8,
        chosen: 2,
        lanes: 1,
        nodes: 1,
        mode,
        format: 0,
        step_chunk: 1_440,
        load_chunk: 1_440,
    }
}

fn id() -> [u8; 16] {
    identity("duck-07").expect("a short name")
}

fn free() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port")
}

fn machine(firmware: &Firmware, cores: u32, wire: Wire) -> Machine {
    let append = command_line("duck-07", &key().public());
    let mut machine = Machine::new(Start::Pvh { kernel: firmware.nest(), append });
    machine.cores = cores;
    machine.nics.push(Nic { card: Card::Virtio, mac: DUCK.0, wire, boots: false });
    machine
}

fn wired() -> (Wire, Box<dyn Link>) {
    let (own, its) = (free(), free());
    let link = Udp::bind(own, &[its], Some(HOST), 1_500).expect("a UDP link");
    (Wire::Udp { local: its, remote: own }, Box::new(link))
}

/// Time from QEMU's start to the first announcement.
fn boots(firmware: &Firmware) -> Duration {
    let (wire, mut link) = wired();
    let started = Instant::now();
    let _qemu = machine(firmware, 4, wire).spawn().expect("QEMU starts");
    loop {
        let mut heard = false;
        link.wait(Some(Duration::from_millis(10)));
        link.rx(&mut |frame| heard |= frame.get(14 + 3) == Some(&(Kind::Announce as u8)));
        if heard {
            return started.elapsed();
        }
        assert!(started.elapsed() < PATIENCE, "it announces itself");
    }
}

/// A host that has given a duck the even experts, and a step that chose two odd ones.
fn without_work(host: &mut Host, limits: &Limits) -> StepData {
    let shape = limits.shape();
    let even = Subtree { slice: 0, slices: 1, depth: 1, residue: 0 }.index(shape);
    host.loaded();
    host.assign(1, &[even]);
    let mut data = StepData::random(limits, 1, &[even], &[], 1);
    (data.experts, data.layer) = (vec![1, 3], 0);
    data
}

/// Microseconds of a step without work, as the host sees it: least, median.
fn round_trips(host: &mut Host, data: &StepData) -> (u64, u64) {
    let mut micros: Vec<u64> = (0..STEPS)
        .map(|seq| {
            host.begin(seq, 1, data);
            host.outcome(seq);
            host.done[&seq].1
        })
        .collect();
    micros.sort_unstable();
    (micros[0], micros[micros.len() / 2])
}

fn on_nest(firmware: &Firmware, model: &Arc<Model>) -> (u64, u64) {
    let (wire, link) = wired();
    let _qemu = machine(firmware, 4, wire).spawn().expect("QEMU starts");
    let kernels = firmware.kernels();
    let mut host = Host::with(link, (DUCK, id()), model, 0..1, Some(&kernels), |_| ()).patient(PATIENCE);
    let data = without_work(&mut host, &model.limits);
    round_trips(&mut host, &data)
}

fn on_duckd(model: &Arc<Model>) -> (u64, u64) {
    let hub = Hub::new();
    let options = Options {
        cores: 4,
        memory: 32 << 20,
        lock: false,
        huge_pages: HugePages::Off,
        ..Options::new(id(), key().public())
    };
    let stop = Stop::new();
    let (own, port) = (stop.clone(), hub.port(DUCK, 1_500));
    let duck = std::thread::spawn(move || Node::new(Box::new(port), options).expect("a duck").run(&own));
    let mut host = Host::new(Box::new(hub.port(HOST, 1_500)), (DUCK, id()), model, 0..1);
    let data = without_work(&mut host, &model.limits);
    let figures = round_trips(&mut host, &data);
    stop.trigger();
    duck.join().expect("it ends");
    figures
}

/// Instructions between the last frame of a step's input and the first frame that answers it: least, median. One core that polls and never
/// sleeps; virtual time is the number of instructions.
fn instructions(firmware: &Firmware, model: &Arc<Model>) -> (u64, u64) {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = folder.path().join("frames.pcap");
    let (wire, link) = wired();
    let mut counted = machine(firmware, 1, wire);
    counted.cpu = "max,hypervisor=off".into();
    let dump = format!("filter-dump,id=dump,netdev=n0,file={}", capture.display());
    counted.counted = Some(SHIFT);
    counted.more.extend(["-object", &dump].map(String::from));
    let qemu = counted.spawn().expect("QEMU starts");
    let kernels = firmware.kernels();
    let mut host = Host::with(link, (DUCK, id()), model, 0..1, Some(&kernels), |c| c.silent_after = 60_000_000);
    host = host.patient(PATIENCE);
    let data = without_work(&mut host, &model.limits);
    round_trips(&mut host, &data);
    qemu.kill();
    gaps(&capture)
}

fn gaps(capture: &Path) -> (u64, u64) {
    let bytes = std::fs::read(capture).expect("QEMU has written it");
    let (mut at, mut input, mut found) = (24, None, Vec::new());
    let answers = [Some(Kind::Result as u8), Some(Kind::Verdict as u8)];
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    while at + 16 <= bytes.len() {
        let (micros, len) = (u64::from(word(at)) * 1_000_000 + u64::from(word(at + 4)), word(at + 8) as usize);
        let Some(frame) = bytes.get(at + 16..at + 16 + len) else { break };
        at += 16 + len;
        let (from_host, kind) = (frame[6..12] == HOST.0, frame.get(14 + 3).copied());
        match (from_host, input) {
            (true, _) if kind == Some(Kind::Input as u8) => input = Some(micros),
            (true, _) => input = None,
            (false, Some(last)) if answers.contains(&kind) => {
                found.push(((micros - last) * 1_000) >> SHIFT);
                input = None;
            }
            (false, _) => {}
        }
    }
    found.sort_unstable();
    assert!(found.len() > STEPS as usize / 2, "steps were captured: {}", found.len());
    (found[found.len() / 10], found[found.len() / 2])
}

/// Microseconds of a step on one core, by the program as this process runs it and by the library: medians, in turn.
fn native(firmware: &Firmware) -> (u128, u128) {
    let model = Model::random(limits(7_168, Mode::Exact), 5);
    let shape = model.limits.shape();
    let data = StepData::random(&model.limits, 1, &[shape.root().index(shape)], &[], 1);
    let data = StepData { layer: 0, ..data };
    let mut program = Native::start(&firmware.kernels(), 1).expect("it is mapped");
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..STEPS {
        model.sums_by(&data, 1, |step| {
            let started = Instant::now();
            assert!(program.run(step), "it has done its part");
            ours.push(started.elapsed().as_micros());
        });
        model.sums_by(&data, 1, |step| {
            let started = Instant::now();
            step.run(Core { index: 0, isa: fp9::Isa::detect() }, &mut NoHooks).expect("it runs");
            theirs.push(started.elapsed().as_micros());
        });
    }
    ours.sort_unstable();
    theirs.sort_unstable();
    (ours[ours.len() / 2], theirs[theirs.len() / 2])
}

fn main() {
    let firmware = firmware();
    let size = |name: &str| std::fs::metadata(firmware.nest().with_file_name(name)).map_or(0, |m| m.len());
    println!("| | |\n|---|---|");
    println!("| nest-elf, bytes | {} |", size("nest-elf"));
    println!("| fp9_kernels, bytes | {} |", size("fp9_kernels"));
    let mut boot: Vec<Duration> = (0..5).map(|_| boots(firmware)).collect();
    boot.sort_unstable();
    println!(
        "| `qemu -kernel`, 4 cores, to the first announcement, ms | {} least, {} median |",
        boot[0].as_millis(),
        boot[2].as_millis()
    );
    let small = Model::random(limits(256, Mode::Exact), 3);
    let (least, median) = on_nest(firmware, &small);
    println!("| step without work, nest on 4 emulated cores, µs | {least} least, {median} median |");
    let (least, median) = on_duckd(&small);
    println!("| the same, duckd with 4 threads in memory, µs | {least} least, {median} median |");
    let (ours, theirs) = native(firmware);
    println!("| step of two units, hidden 7168, one core: the program natively, µs | {ours} median |");
    println!("| the same, the library | {theirs} median |");
    for (hidden, mode) in [(256, Mode::Exact), (7_168, Mode::Bf16)] {
        let (least, median) = instructions(firmware, &Model::random(limits(hidden, mode), 4));
        println!(
            "| instructions from last input to first output, hidden {hidden}, {mode:?} | {least} tenth percentile, {median} median |"
        );
    }
}
