//! The bare-metal duck under QEMU, at the end of a UDP link, against the host's own state machine: the tests that `duckd` passes as a thread.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use duck_tests::{Host, LIMITS, Model, Random, StepData, key, slice_nodes};
use duckpond::netboot;
use firmware_tests::firmware::{command_line, firmware};
use firmware_tests::net::has_programs;
use firmware_tests::qemu::{Card, Disc, Machine, Nic, Qemu, Start, Wire};
use link::{ETHERNET, Link, Mac, Udp};
use pond::Pond;
use wire::frozen::{RESET_OFF, RESET_REBOOT, identity};
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
    let append = format!("{} {more}", command_line("duck-07", &key().public()));
    machine(Machine::new(Start::Pvh { kernel: firmware().nest(), append }), card, cores)
}

fn machine(mut machine: Machine, card: Card, cores: u32) -> (Qemu, Box<dyn Link>) {
    let free = || UdpSocket::bind("127.0.0.1:0").and_then(|s| s.local_addr()).expect("a free port");
    let (own, its) = (free(), free());
    machine.cores = cores;
    machine.reboots = true;
    machine.nics.push(Nic { card, mac: MAC.0, wire: Wire::Udp { local: its, remote: own }, boots: false });
    let link = Udp::bind(own, &[its], Some(HOST), 1_500).expect("a UDP link");
    (machine.spawn().expect("QEMU starts"), Box::new(link))
}

fn host(link: Box<dyn Link>, model: &Arc<Model>, epoch: u32, program: &[u8]) -> Host {
    host_of(id(), link, model, epoch, program)
}

fn host_of(id: [u8; 16], link: Box<dyn Link>, model: &Arc<Model>, epoch: u32, program: &[u8]) -> Host {
    Host::with(link, (MAC, id), model, 0..2, Some(program), |config| {
        config.epoch = epoch;
        config.silent_after = 20_000_000;
    })
    .patient(PATIENCE)
}

/// Opens a session with these kernels and computes some steps, whose bits must be those of the kernels in this process.
fn computes(link: Box<dyn Link>, model: &Arc<Model>, epoch: u32, steps: u32) -> Box<dyn Link> {
    let mut host = host(link, model, epoch, &firmware().kernels());
    host_computes(&mut host, steps);
    host.into_link()
}

fn host_computes(host: &mut Host, steps: u32) {
    let model = Arc::clone(host.model());
    host.loaded();
    let plan = slice_nodes(&model.limits, 0..2);
    host.assign(1, &plan);
    for seq in 0..steps {
        let lanes = 1 + seq as usize % usize::from(model.limits.lanes);
        let data = StepData::random(&model.limits, lanes, &plan, &[], seq.into());
        host.begin(seq, 1, &data);
        host.assert_sums(seq, &model.sums(&data));
    }
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

/// On a processor that is not shared a duck spins instead of sleeping, and with much memory blocks lie above 4 GiB on the largest pages.
#[test]
fn a_processor_of_its_own_and_much_memory_change_no_bit() {
    let _alone = alone();
    let model = Model::random(LIMITS, 14);
    let append = command_line("duck-07", &key().public());
    let mut metal = Machine::new(Start::Pvh { kernel: firmware().nest(), append });
    metal.cpu = "max,hypervisor=off".into();
    metal.memory_mib = 6 << 10;
    let (qemu, link) = machine(metal, Card::Virtio, 2);
    let line = qemu.wait_for("for blocks", PATIENCE).expect("it boots");
    assert!(line.contains(" 3 GiB of them") || line.contains(" 4 GiB of them"), "{line}");
    assert!(!line.contains("virtual"), "{line}");
    let link = computes(link, &model, 3, 3);
    // After a tenth of a second it sleeps between looks.
    std::thread::sleep(Duration::from_millis(500));
    computes(link, &model, 4, 3);
}

/// By GRUB, from disc with BIOS and from a stick with UEFI; a duck that was told no name goes by its hardware address.
#[test]
fn the_image_for_discs_and_sticks_boots_and_computes() {
    let programs = [
        ("grub-mkrescue", "grub-common with grub-efi-amd64-bin and grub-pc-bin"),
        ("xorriso", "xorriso"),
        ("mformat", "mtools"),
    ];
    if !has_programs(&programs) {
        return;
    }
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let pond = Pond::new("test");
    netboot::write(folder.path(), &firmware().nest(), &pond, &key().public()).expect("images");
    let image = folder.path().join(netboot::ISO);
    let model = Model::random(LIMITS, 12);
    let name = identity("020000000007").expect("a short name");
    for (start, disc, card, cores) in [
        (Start::Bios, Disc::Cd(image.clone()), Card::Rtl8139, 1),
        (Start::Uefi, Disc::Usb(image.clone()), Card::E1000e, 4),
    ] {
        let mut grub = Machine::new(start);
        grub.discs.push(disc);
        let (_qemu, link) = machine(grub, card, cores);
        host_computes(&mut host_of(name, link, &model, 3, &firmware().kernels()), 3);
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
        ("fresh_twice", 0, 128, None),
        ("syscall", 1, 6, None),
        ("writable_view", 0, 14, Some(7)),
        ("endless_loop", 1, 0, None),
        ("endless_loop_0", 0, 0, None),
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
        if name.starts_with("endless_loop") {
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
fn it_starts_afresh_and_powers_off_when_its_owner_says_so() {
    let _alone = alone();
    let model = Model::random(LIMITS, 13);
    let (qemu, link) = duck(Card::Virtio, 2, "memtest=1");
    let mut owner = host(link, &model, 3, &firmware().kernels());
    owner.loaded();
    qemu.wait_for("announcing", PATIENCE).expect("it has booted");
    assert!(qemu.serial().contains("MiB are sound"), "{}", qemu.serial());
    let now = owner.now();
    owner.peer.reset(now, RESET_REBOOT);
    let serial = || qemu.serial().matches("announcing").count();
    owner.until("it has booted again", |_| serial() == 2);
    // Another boot is found by its number, and loaded again.
    let mut owner = host(owner.into_link(), &model, 4, &firmware().kernels());
    owner.loaded();
    let now = owner.now();
    owner.peer.reset(now, RESET_OFF);
    owner.until("it is off", |_| !qemu.runs());
    assert_eq!(qemu.wait_exit(PATIENCE), Ok(0));
}

/// Gives a damaged frame of the protocol a sound checksum.
fn mend(frame: &mut [u8]) {
    let length = usize::from(u16::from_le_bytes([frame[6], frame[7]]));
    let end = (wire::HEADER + length).min(frame.len());
    let head = wire::crc::native(0, &frame[..wire::HEADER - 4]);
    let crc = wire::crc::native(head, &frame[wire::HEADER..end]);
    frame[wire::HEADER - 4..wire::HEADER].copy_from_slice(&crc.to_le_bytes());
}

#[test]
fn hostile_frames_change_nothing() {
    let _alone = alone();
    let model = Model::random(LIMITS, 9);
    let (qemu, link) = duck(Card::Virtio, 2, "");
    let mut host = host(link, &model, 5, &firmware().kernels());
    host.sent = Some(Vec::new());
    host_computes(&mut host, 3);
    let sent = host.sent.take().expect("they are kept");
    let mut link = host.into_link();
    let mut random = Random(1);
    for round in 0..6_000 {
        let mut frame = sent[random.number() as usize % sent.len()].clone();
        match round % 6 {
            // As it was: a replay.
            0 => {}
            1 => frame.truncate(random.number() as usize % (frame.len() + 1)),
            2 => frame.resize(1_514, random.number() as u8),
            _ => {
                let flips = 1 + random.number() % 8;
                (0..flips).for_each(|_| {
                    let at = random.number() as usize % frame.len();
                    frame[at] ^= 1 << (random.number() % 8);
                });
                // A third of them with a sound checksum, so that what is inside is looked at.
                if round % 2 == 0 && frame.len() >= ETHERNET + wire::HEADER {
                    mend(&mut frame[ETHERNET..]);
                }
            }
        }
        link.tx(&mut |buffer| {
            buffer[..frame.len()].copy_from_slice(&frame);
            frame.len()
        });
        if round % 32 == 0 {
            link.flush();
            link.rx(&mut |_| ());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    computes(link, &model, 6, 3);
    assert!(!qemu.serial().contains("PANIC"), "{}", qemu.serial());
}

#[test]
fn sessions_leave_nothing_behind() {
    let _alone = alone();
    let model = Model::random(LIMITS, 8);
    let (_qemu, mut link) = duck(Card::Virtio, 2, "");
    let rounds = if std::env::var_os("DUCKPOND_LONG").is_some() { 1_000 } else { 100 };
    for round in 0..rounds {
        // Another program at the same place now and then: what the processor remembers of the last one's pages must not matter.
        if round % 10 == 5 {
            let mut bad = host(link, &model, 2 * round + 1, &firmware().fault("null_read"));
            bad.loaded();
            bad.assign(1, &slice_nodes(&LIMITS, 0..2));
            bad.begin(0, 1, &StepData::random(&LIMITS, 1, &slice_nodes(&LIMITS, 0..2), &[], 1));
            assert!(matches!(bad.outcome(0), Outcome::Failed(_)), "round {round}");
            link = bad.into_link();
        }
        link = computes(link, &model, 2 * round + 2, 1);
    }
}
