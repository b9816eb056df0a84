//! What `duckpond netboot` writes, booted by machines as bare as they come: over the network by UEFI and BIOS, answered by the boot service or
//! by dnsmasq, and from a disc and a stick. A tiny firmware says the command line that it was given.
//!
//! It needs root, QEMU, GRUB and more. Without them it says so and passes, or fails with `DUCKPOND_REQUIRE_NET=1`.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use boot::{BIOS, BootFile, Config, EFI_X64, Files, Lease, Service};
use duckpond::netboot;
use firmware_tests::firmware::firmware;
use firmware_tests::net::{Net, has_programs};
use firmware_tests::qemu::{Card, Disc, Machine, Nic, Start, Wire};
use firmware_tests::serving::Serving;
use firmware_tests::tiny;
use pond::{Duck, Pond, Port};
use tempfile::TempDir;
use wire::key::PublicKey;

const PROGRAMS: [(&str, &str); 6] = [
    ("qemu-system-x86_64", "qemu-system-x86 with ovmf and ipxe-qemu"),
    ("grub-mkstandalone", "grub-common with grub-efi-amd64-bin and grub-pc-bin"),
    ("mformat", "mtools"),
    ("xorriso", "xorriso"),
    ("dnsmasq", "dnsmasq-base"),
    ("gcc", "gcc"),
];
/// From power-on to the firmware, on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(180);
const KEY: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
const MALLARD: [u8; 6] = [2, 0, 0, 0, 1, 0x0a];
const TEAL: [u8; 6] = [2, 0, 0, 0, 1, 0x0b];
const STRANGER: [u8; 6] = [2, 0, 0, 0, 9, 9];

fn pond() -> Pond {
    let mut pond = Pond::new("test");
    let mut port = Port::new("p0", "eth:host0".parse().expect("a link"));
    port.subnet = Some("10.21.1.0/24".parse().expect("a subnet"));
    pond.ports.push(port);
    for (i, (name, mac)) in [("mallard", MALLARD), ("teal_2.b", TEAL)].into_iter().enumerate() {
        let mut duck = Duck::new(name, "p0");
        (duck.mac, duck.address) = (Some(pond::Mac(mac)), Some([10, 21, 1, 17 + i as u8].into()));
        pond.ducks.push(duck);
    }
    pond.check().expect("a consistent pond");
    pond
}

/// The folder with everything, made once; `None`, said aloud, where something is missing.
fn images() -> Option<&'static Path> {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    has_programs(&PROGRAMS).then(|| {
        let make = || {
            let folder = TempDir::new().expect("a folder");
            let firmware = tiny::assemble(folder.path()).unwrap_or_else(|said| panic!("{said}"));
            let key = PublicKey(pond::hex::decode(KEY).expect("64 digits"));
            netboot::write(&folder.path().join("out"), &firmware, &pond(), &key).unwrap_or_else(|e| panic!("{e}"));
            folder
        };
        FOLDER.get_or_init(make).path()
    })
}

/// Machines run one at a time: each keeps a processor busy.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(net: &Net, out: &Path) -> Serving {
    let link = net.host(&[0x0800, 0x0806, 0x88b5]);
    let read = |name: &str| Arc::<[u8]>::from(std::fs::read(out.join(name)).expect("netboot has written it"));
    let files: Files = [netboot::EFI, netboot::BIOS].map(|name| (name.into(), read(name))).into();
    let boot = |architecture, name: &str| BootFile { architecture, name: name.into() };
    let leases = pond().ducks.into_iter().filter_map(|duck| {
        let (mac, address) = duck.mac.zip(duck.address)?;
        Some(Lease { mac: link::Mac(mac.0), address, name: duck.name.into(), text: "".into() })
    });
    let service = Service::new(Config {
        mac: link.mac(),
        mtu: link.mtu(),
        address: [10, 21, 1, 1].into(),
        prefix: 24,
        leases: leases.collect(),
        adopt: Some([10, 21, 1, 200].into()..=[10, 21, 1, 210].into()),
        files,
        boot_files: vec![boot(BIOS, netboot::BIOS), boot(EFI_X64[0], netboot::EFI), boot(EFI_X64[1], netboot::EFI)],
    });
    Serving::start(service.expect("a good configuration"), link)
}

/// What a duck of that name is told that booted over the card with this address.
fn told(name: Option<&str>, mac: [u8; 6]) -> String {
    let name = name.map(|name| format!("name={name} ")).unwrap_or_default();
    format!("{name}key={KEY} nic={}", link::Mac(mac))
}

/// Boots a machine and returns the command line that its firmware was given.
fn command_line(machine: &Machine) -> Result<String, String> {
    let machine = machine.spawn()?;
    let line = machine.wait_for("command line: [", LIMIT)?;
    assert_eq!(machine.wait_exit(LIMIT)?, tiny::EXIT);
    let line = line.rsplit_once("command line: [").and_then(|(_, line)| line.strip_suffix(']'));
    line.map(str::to_owned).ok_or_else(|| machine.serial())
}

fn over_network(net: &Net, start: Start, card: Card, mac: [u8; 6]) -> Machine {
    let mut machine = Machine::new(start);
    machine.namespace = Some(net.namespace().into());
    machine.nics.push(Nic { card, mac, wire: Wire::Tap(net.tap()), boots: true });
    machine
}

/// Boots over the network, answered by the boot service; what the firmware was given, and what people were told.
fn served(start: Start, card: Card, mac: [u8; 6]) -> Option<(String, Vec<String>)> {
    let out = images()?.join("out");
    let _alone = alone();
    let net = Net::new()?;
    let serving = serve(&net, &out);
    let line = command_line(&over_network(&net, start, card, mac));
    let events = serving.events();
    Some((line.unwrap_or_else(|why| panic!("{why}\n{events:#?}")), events))
}

#[test]
fn uefi_boots_over_the_network_and_a_duck_is_told_its_name() {
    let Some((line, events)) = served(Start::Uefi, Card::Virtio, MALLARD) else { return };
    assert_eq!(line, told(Some("mallard"), MALLARD));
    assert!(events.iter().any(|event| event.starts_with("mallard has fetched duck.efi, ")), "{events:#?}");
}

#[test]
fn uefi_by_the_programs_of_cards_boots_over_the_network() {
    let Some((line, _)) = served(Start::Uefi, Card::E1000e, TEAL) else { return };
    assert_eq!(line, told(Some("teal_2.b"), TEAL));
}

#[test]
fn a_bios_boots_over_the_network_and_a_duck_is_told_its_name() {
    for (card, mac, name) in [(Card::Virtio, TEAL, "teal_2.b"), (Card::Rtl8139, MALLARD, "mallard")] {
        let Some((line, events)) = served(Start::Bios, card, mac) else { return };
        assert_eq!(line, told(Some(name), mac), "{card:?}");
        assert!(events.iter().any(|event| event.contains("has fetched duck.0, ")), "{events:#?}");
    }
}

#[test]
fn a_machine_in_no_row_is_told_the_key_only() {
    for start in [Start::Bios, Start::Uefi] {
        let Some((line, _)) = served(start.clone(), Card::Virtio, STRANGER) else { return };
        assert_eq!(line, told(None, STRANGER), "{start:?}");
    }
}

#[test]
fn the_image_boots_from_disc_and_stick_by_bios_and_uefi() {
    let Some(folder) = images() else { return };
    let _alone = alone();
    for start in [Start::Bios, Start::Uefi] {
        for disc in [Disc::Cd as fn(PathBuf) -> Disc, Disc::Usb] {
            let mut machine = Machine::new(start.clone());
            machine.discs.push(disc(folder.join("out").join(netboot::ISO)));
            let line = command_line(&machine).unwrap_or_else(|why| panic!("{:?}: {why}", machine.discs));
            assert_eq!(line, format!("key={KEY}"), "{start:?} {:?}", machine.discs);
        }
    }
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn dnsmasq_boots_the_real_firmware_with_the_configuration_that_was_written() {
    if !has_programs(&PROGRAMS) {
        return;
    }
    let _alone = alone();
    let Some(net) = Net::new() else { return };
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path();
    let key = PublicKey(pond::hex::decode(KEY).expect("64 digits"));
    netboot::write(&folder.join("out"), &firmware().nest(), &pond(), &key).unwrap_or_else(|e| panic!("{e}"));
    let conf = folder.join("out").join(netboot::DNSMASQ);
    let text = std::fs::read_to_string(&conf).expect("netboot has written it");
    let address = text.lines().find_map(|line| line.strip_prefix("# p0: ")).expect("how to set the interface up");
    let run = |line: &str| {
        let mut words = vec!["ip", "netns", "exec", net.namespace()];
        words.extend(line.split(' '));
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    assert!(run(address).status().expect("iproute2 is there").success(), "{address}");
    // Leases of its own, and files that only root can read.
    let lease = folder.join("leases");
    let line = format!(
        "setpriv --pdeathsig KILL dnsmasq --keep-in-foreground --user=root --dhcp-leasefile={} --conf-file={}",
        lease.display(),
        conf.display()
    );
    let _dnsmasq = Killed(run(&line).spawn().expect("it was looked for"));
    for (start, mac, name, cores) in [(Start::Bios, MALLARD, "mallard", 2), (Start::Uefi, TEAL, "teal_2.b", 1)] {
        let mut machine = over_network(&net, start, Card::Virtio, mac);
        machine.cores = cores;
        let machine = machine.spawn().unwrap_or_else(|why| panic!("{why}"));
        machine.wait_for(&format!("{name} at "), LIMIT).unwrap_or_else(|why| panic!("{why}"));
        machine.wait_for("announcing", LIMIT).unwrap_or_else(|why| panic!("{why}"));
    }
}
