//! A pond of machines: four bare-metal ducks on two bridges, with every card, one of them booting over the network out of the engine's own
//! boot service. A duck is killed and boots again, another is made to start afresh, and the answer stays what ducks in this process give.
//!
//! It needs root, QEMU, GRUB and more. Without them it says so and passes, or fails with `DUCKPOND_REQUIRE_NET=1`.

use std::path::Path;
use std::time::{Duration, Instant};

use boot::Files;
use decode::{Engine, EngineOptions};
use duckpond::netboot;
use firmware_tests::firmware::{command_line, firmware};
use firmware_tests::net::{Net, has_programs};
use firmware_tests::qemu::{Card, Machine, Nic, Qemu, Start, Wire};
use flock::remote::{DuckSpec, Options, PondStatus, Port, Program};
use link::Mac;
use model::Numerics;
use model::program::Model;
use pond::Pond;
use pond_tests::ducks::key;
use pond_tests::processes::{all_ready, engine, status};
use pond_tests::{Answer, answer, answer_with, duckling_folder, greedy_request, load};
use wire::key::Domain;

/// From power-on to computing, on a machine that is busy with other tests.
const PATIENCE: Duration = Duration::from_secs(240);
const CARDS: [Card; 4] = [Card::Virtio, Card::Rtl8139, Card::E1000e, Card::Virtio];
/// The one that boots over the network.
const NETBOOTS: usize = 3;

fn mac(duck: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, duck as u8])
}

/// The pond: two ports, two ducks behind each.
fn description() -> Pond {
    let mut text = "name = 'test'\n".to_owned();
    for port in 0..2 {
        text += &format!("[[ports]]\nname = 'port-{port}'\nlink = 'eth:host0'\nsubnet = '10.21.{}.0/24'\n", port + 1);
    }
    for duck in 0..4 {
        text += &format!("[[ducks]]\nname = 'duck-{duck}'\nport = 'port-{}'\nmac = '{}'\n", duck / 2, mac(duck));
    }
    Pond::from_toml(&text).expect("well-formed")
}

/// The ducks' side: bridges, and machines on them.
struct Flock {
    nets: [Net; 2],
    files: Files,
    machines: [Option<Qemu>; 4],
}

impl Flock {
    fn new(nets: [Net; 2], images: &Path) -> Flock {
        let read = |name: &str| std::fs::read(images.join(name)).expect("netboot has written it").into();
        let files = [netboot::EFI, netboot::BIOS].map(|name| (name.into(), read(name))).into();
        Flock { nets, files, machines: [const { None }; 4] }
    }

    fn power_on(&mut self, duck: usize) {
        let net = &self.nets[duck / 2];
        let append = command_line(&format!("duck-{duck}"), &key().public());
        let netboots = duck == NETBOOTS;
        let kernel = firmware().nest();
        let mut machine = Machine::new(if netboots { Start::Uefi } else { Start::Pvh { kernel, append } });
        machine.namespace = Some(net.namespace().into());
        machine.reboots = true;
        let wire = Wire::Tap(net.tap());
        machine.nics.push(Nic { card: CARDS[duck], mac: mac(duck).0, wire, boots: netboots });
        self.machines[duck] = Some(machine.spawn().expect("QEMU starts"));
    }

    fn options(&self) -> Options {
        let description = description();
        let ports = (0..2).map(|at| {
            let link = self.nets[at].host(&[wire::ETHERTYPE, 0x0800, 0x0806]);
            let boot = netboot::service::service(&description, &description.ports[at], &*link, &self.files, false);
            Port { name: format!("port-{at}"), boot: boot.expect("a good description"), link }
        });
        let ducks = description.ducks.iter().enumerate().map(|(at, duck)| DuckSpec {
            name: duck.name.clone(),
            port: at / 2,
            mac: Some(mac(at)),
            memory: None,
            speed: 1.0,
        });
        let bytes = firmware().kernels();
        let signature = key().sign(Domain::Program, blake3::hash(&bytes).as_bytes());
        Options {
            wait: PATIENCE,
            silent_after: Duration::from_secs(5),
            program: Some(Program::new(bytes, signature)),
            ..Options::new(ports.collect(), ducks.collect(), key(), [7; 16])
        }
    }

    fn told(&self) -> String {
        let last = |machine: &Option<Qemu>| machine.as_ref().map(Qemu::serial).unwrap_or_default();
        self.machines.iter().map(last).collect::<Vec<_>>().join("\n----\n")
    }

    fn wait_for(&self, engine: &mut Engine, what: &str, holds: impl Fn(&PondStatus) -> bool) {
        let started = Instant::now();
        loop {
            engine.flock().as_remote().expect("ducks behind links").tick().expect("domains work");
            let status = status(engine);
            if holds(&status) {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "{what}: {status:#?}\n{}", self.told());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn here(model: &Model, prompt: &[u32], tokens: usize) -> Answer {
    let mut engine = Engine::new(model.clone(), &EngineOptions::default()).expect("good options");
    answer(&mut engine, &greedy_request(prompt, tokens, false))
}

#[test]
fn a_pond_of_machines_answers_as_ducks_in_this_process_do_whatever_happens_to_one() {
    let programs = [
        ("qemu-system-x86_64", "qemu-system-x86 with ovmf"),
        ("grub-mkstandalone", "grub-common with grub-efi-amd64-bin and grub-pc-bin"),
        ("xorriso", "xorriso"),
    ];
    if !has_programs(&programs) {
        return;
    }
    let Some(nets) = Net::new().zip(Net::new()).map(|(a, b)| [a, b]) else { return };
    let images = tempfile::tempdir().expect("a folder");
    netboot::write(images.path(), &firmware().nest(), &description(), &key().public()).expect("images");
    let mut ducks = Flock::new(nets, images.path());
    (0..4).for_each(|duck| ducks.power_on(duck));

    let prompt = golden::Case::open("deepseek-v32-tiny", "short").prompt;
    let tiny = load(&golden::deepseek_v32_tiny());
    let mut pond = engine(&tiny, Numerics::Exact, ducks.options());
    ducks.wait_for(&mut pond, "all four compute", all_ready);
    let want = here(&tiny, &prompt, 12);
    let request = greedy_request(&prompt, 12, false);
    assert!(answer(&mut pond, &request) == want, "undisturbed");

    // One loses its power and boots again over the network; another is told to start afresh.
    pond.reset();
    let handle = pond.flock().as_remote().expect("ducks behind links").handle();
    let got = answer_with(&mut pond, &request, |token| match token {
        3 => ducks.machines[NETBOOTS] = None,
        5 => ducks.power_on(NETBOOTS),
        7 => assert!(handle.reset(0), "it is there"),
        _ => {}
    });
    assert!(got == want, "one was killed, another reset");
    let back = |status: &PondStatus| all_ready(status) && status.ducks.iter().map(|duck| duck.losses).sum::<u64>() >= 2;
    ducks.wait_for(&mut pond, "both are back", back);
    pond.reset();
    assert!(answer(&mut pond, &request) == want, "afterwards");
    drop(pond);

    // The real small model, on the same machines.
    let case = golden::duckling_greedy().into_iter().min_by_key(|case| case.prompt_ids.len()).expect("there are some");
    let duckling = load(&duckling_folder());
    let mut pond = engine(&duckling, Numerics::Exact, ducks.options());
    ducks.wait_for(&mut pond, "all four have the other model", all_ready);
    assert!(
        answer(&mut pond, &greedy_request(&case.prompt_ids, 6, false)) == here(&duckling, &case.prompt_ids, 6),
        "duckling"
    );
    assert_eq!(status(&mut pond).host_units, 0);
}
