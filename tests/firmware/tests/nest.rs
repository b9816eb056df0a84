//! The bare-metal duck under QEMU, at the end of a UDP link, against the host's own state machine: the tests that `duckd` passes as a thread.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_tests::{Host, LIMITS, Model, StepData, key, slice_nodes};
use firmware_tests::firmware::firmware;
use firmware_tests::qemu::{Card, Machine, Nic, Qemu, Start, Wire};
use link::{Link, Mac, Udp};
use wire::frozen::identity;
use wire::host::{Event, Outcome};
use wire::limits::Limits;
use wire::message::{Verdict, VerdictCode};

/// Far above what a machine takes on a busy computer.
const PATIENCE: Duration = Duration::from_secs(120);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);
const HOST: Mac = Mac([2, 0, 0, 0, 0, 1]);

/// Emulated machines take all processors there are: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn id() -> [u8; 16] {
    identity("duck-07").expect("a short name")
}

/// A duck that boots, and the other end of its wire.
fn duck(card: Card, cores: u32, more: &str) -> (Qemu, Box<dyn Link>) {
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a free port");
    let (own, its) = (free(), free());
    let key = key().public().0.map(|byte| format!("{byte:02x}")).concat();
    let append = format!("name=duck-07 key={key} {more}");
    let mut machine = Machine::new(Start::Pvh { kernel: firmware().nest(), append });
    machine.cores = cores;
    machine.reboots = true;
    machine.nics.push(Nic { card, mac: MAC.0, wire: Wire::Udp { local: its, remote: own }, boots: false });
    let link = Udp::bind(own, &[its], Some(HOST), 1_500).expect("a UDP link");
    (machine.spawn().expect("QEMU starts"), Box::new(link))
}

fn host(link: Box<dyn Link>, model: &Arc<Model>, epoch: u32, program: &[u8]) -> Host {
    Host::with(link, (MAC, id()), model, 0..2, Some(program), |config| {
        config.epoch = epoch;
        config.silent_after = 20_000_000;
    })
    .patient(PATIENCE)
}

/// Opens a session with these kernels and computes some steps, whose bits must be those of the kernels in this process.
fn computes(link: Box<dyn Link>, model: &Arc<Model>, epoch: u32, steps: u32) -> Box<dyn Link> {
    let mut host = host(link, model, epoch, &firmware().kernels());
    host.loaded();
    let plan = slice_nodes(&model.limits, 0..2);
    host.assign(1, &plan);
    for seq in 0..steps {
        let lanes = 1 + seq as usize % usize::from(model.limits.lanes);
        let data = StepData::random(&model.limits, lanes, &plan, &[], seq.into());
        host.begin(seq, 1, &data);
        host.assert_sums(seq, &model.sums(&data));
    }
    host.into_link()
}

#[test]
fn every_card_and_number_of_cores_computes_the_kernels_bits() {
    let _alone = alone();
    for (card, cores, format) in [(Card::Virtio, 4, 1), (Card::Rtl8139, 2, 0), (Card::E1000e, 1, 1)] {
        let model = Model::random(Limits { format, ..LIMITS }, 5);
        let (qemu, link) = duck(card, cores, "");
        let line = qemu.wait_for("for blocks", PATIENCE).expect("it boots");
        assert!(line.contains(&format!(" {cores} cores")), "{line}");
        qemu.wait_for("announcing", PATIENCE).expect("its card starts");
        computes(link, &model, 77, 8);
    }
}

#[test]
fn whatever_a_program_does_becomes_a_verdict_and_the_next_session_is_clean() {
    let _alone = alone();
    let model = Model::random(LIMITS, 6);
    let (_qemu, mut link) = duck(Card::Virtio, 2, "");
    let plan = slice_nodes(&LIMITS, 0..2);
    // Core, trap, error code where it is known.
    let faults = [
        ("null_read", 0, 14, Some(4 | 1)),
        ("own_text", 0, 14, Some(7)),
        ("weights", 0, 14, Some(7)),
        ("jump_to_data", 1, 14, Some(0x15)),
        ("privileged", 0, 13, None),
        ("early_exit", 1, 128, None),
        ("stack_overflow", 0, 14, Some(6)),
        ("bad_call", 1, 128, None),
        ("endless_loop", 1, 0, None),
    ];
    let mut epoch = 100;
    for (name, core, trap, error) in faults {
        epoch += 2;
        let mut bad = host(link, &model, epoch, &firmware().fault(name));
        bad.loaded();
        bad.assign(1, &plan);
        let data = StepData { time_limit: 2_000_000, ..StepData::random(&LIMITS, 2, &plan, &[], 1) };
        bad.begin(0, 1, &data);
        let Outcome::Failed(verdict) = bad.outcome(0) else { panic!("{name}: {:?}", bad.outcome(0)) };
        if name == "endless_loop" {
            assert_eq!(verdict.code, VerdictCode::TimeLimit as u8, "{name}: {verdict:?}");
        } else {
            let Verdict { code, core: its_core, trap: its_trap, instruction, .. } = verdict;
            let found = (code, u32::from(its_core), u32::from(its_trap));
            assert_eq!(found, (VerdictCode::RuntimeError as u8, core, trap), "{name}: {verdict:?}");
            assert!(instruction >> 39 == 1 || name == "jump_to_data", "{name}: {verdict:?}");
        }
        if let Some(error) = error {
            assert_eq!(verdict.error, error, "{name}: {verdict:?}");
        }
        // The session is dead, whatever is asked.
        bad.begin(1, 1, &StepData::random(&LIMITS, 1, &plan, &[], 2));
        assert!(matches!(bad.outcome(1), Outcome::Failed(_)), "{name}");
        link = computes(bad.into_link(), &model, epoch + 1, 2);
    }
}

#[test]
fn a_program_that_is_none_is_refused_and_told_why() {
    let _alone = alone();
    let model = Model::random(LIMITS, 6);
    let (_qemu, link) = duck(Card::Virtio, 1, "");
    let kernels = firmware().kernels();
    let mut bad = host(link, &model, 5, &kernels[..kernels.len() / 2]);
    bad.loaded();
    bad.until("it says why", |h| {
        h.events.iter().any(|e| matches!(e, Event::Log(line) if line.text().contains("program")))
    });
    computes(bad.into_link(), &model, 6, 2);
}

#[test]
fn sessions_leave_nothing_behind() {
    let _alone = alone();
    let model = Model::random(LIMITS, 8);
    let (_qemu, mut link) = duck(Card::Virtio, 2, "");
    let rounds = if std::env::var_os("DUCKPOND_LONG").is_some() { 1_000 } else { 100 };
    for epoch in 1..=rounds {
        link = computes(link, &model, epoch, 1);
    }
}
