//! `duckpond netboot`, with programs in GRUB's place that only write down what they were given. Real machines boot in `tests/firmware`.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;

use common::{Ran, Scratch, names_in, run};

const KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
const PROGRAMS: [&str; 4] = ["grub-mkstandalone", "grub-mkrescue", "mformat", "xorriso"];
const PACKAGES: &str = "grub-efi-amd64-bin grub-pc-bin grub-common mtools xorriso";
/// Writes the menu that it finds into the image.
const IMAGE: &str = "#!/bin/sh\n\
    while [ $# != 0 ]; do case $1 in -o) out=$2;; disc) menu=disc/boot/grub/grub.cfg;; esac; shift; done\n\
    cat \"${menu:-grub.cfg}\" > \"$out\"\n";

fn description(link: &str) -> String {
    format!(
        "name = \"test\"\npublic_key = \"{KEY}\"\n[[ports]]\nname = \"p0\"\nlink = \"{link}\"\nsubnet = \"10.21.1.0/24\"\n\
         [[ducks]]\nname = \"mallard\"\nport = \"p0\"\nmac = \"02:00:00:00:01:0A\"\naddress = \"10.21.1.17\"\n\
         [[ducks]]\nname = \"teal\"\nport = \"p0\"\n"
    )
}

/// A folder with a description, firmware and programs.
fn scratch(image: &str) -> Scratch {
    let scratch = Scratch::new();
    scratch.write("pond.toml", description("eth:enp3s0"));
    let mut elf = vec![0; 64 + 56 + 24];
    elf[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
    for (at, value) in [(32, 64u64), (64 + 8, 120), (64 + 32, 24)] {
        elf[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    for (at, byte) in [(54, 56), (56, 1), (64, 1)] {
        elf[at] = byte;
    }
    elf[120..124].copy_from_slice(&0xe852_50d6_u32.to_le_bytes());
    scratch.write("nest.elf", elf);
    for program in PROGRAMS {
        let path = scratch.write(&format!("programs/{program}"), image);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    }
    scratch
}

fn netboot(scratch: &Scratch, more: &[&str]) -> Ran {
    let mut command = scratch.command(&[&["netboot", "out", "--firmware", "nest.elf"], more].concat());
    let programs = scratch.path("programs");
    run(command.env("PATH", format!("{}:/usr/bin:/bin", programs.display())))
}

#[test]
fn each_image_has_its_menu_and_each_duck_its_line() {
    let scratch = scratch(IMAGE);
    scratch.write("out/duck.efi", "of another time");
    scratch.write("out/notes", "somebody's");
    let ran = netboot(&scratch, &["--pond", "pond.toml"]);
    assert_eq!(ran.succeeded(), Vec::<&str>::new());
    assert_eq!(ran.stdout, "out/README.txt\n");
    let out = scratch.path("out");
    assert_eq!(names_in(&out), ["README.txt", "dnsmasq.conf", "duck.0", "duck.efi", "duck.iso", "notes"]);
    let read = |name: &str| fs::read_to_string(out.join(name)).expect("text");
    let network = read("duck.efi");
    let line = "if [ \"$net_default_mac\" = 02:00:00:00:01:0a ]; then set duck=name=mallard; fi\n";
    assert!(network.contains(line) && !network.contains("teal"), "{network}");
    assert!(
        network.contains(&format!("\nmultiboot2 (memdisk)/boot/duck.elf $duck key={KEY} $nic\nboot\n")),
        "{network}"
    );
    assert_eq!(read("duck.0"), network);
    assert!(read("duck.iso").contains(&format!("\nmultiboot2 /boot/duck.elf key={KEY}\nboot\n")));
    let dnsmasq = read("dnsmasq.conf");
    for line in [
        "interface=enp3s0",
        "dhcp-range=10.21.1.0,static,255.255.255.0,24h",
        "dhcp-host=02:00:00:00:01:0a,10.21.1.17,mallard",
        "dhcp-boot=tag:bios,duck.0",
        "dhcp-boot=tag:efi64,duck.efi",
        &format!("tftp-root={}", out.display()),
    ] {
        assert!(dnsmasq.lines().any(|found| found == line), "{line} is missing in\n{dnsmasq}");
    }
    assert!(read("README.txt").contains("dnsmasq --keep-in-foreground"));

    // Without a port of the kernel's there is nothing for dnsmasq, and what was there would lead astray.
    scratch.write("pond.toml", description("dpdk:0000:01:00.0"));
    assert_eq!(netboot(&scratch, &["--pond", "pond.toml"]).succeeded(), Vec::<&str>::new());
    assert_eq!(names_in(&out), ["README.txt", "duck.0", "duck.efi", "duck.iso", "notes"]);
    assert!(!read("README.txt").contains("dnsmasq"));
}

#[test]
fn a_program_that_fails_is_told_in_one_line_and_nothing_changes() {
    let scratch = scratch("#!/bin/sh\necho half > \"$4\"\necho first >&2\necho '  no modules here' >&2\nexit 3\n");
    scratch.write("out/duck.efi", "of another time");
    let line = format!("grub-mkstandalone failed: no modules here; it needs the Debian packages {PACKAGES}");
    netboot(&scratch, &["--pond", "pond.toml"]).refused(1, &line);
    assert_eq!(names_in(&scratch.path("out")), ["duck.efi"]);
    assert_eq!(fs::read(scratch.path("out/duck.efi")).expect("kept"), b"of another time");
}

#[test]
fn what_is_missing_is_named_before_anything_is_made() {
    let scratch = scratch(IMAGE);
    let without = run(&mut scratch.command(&["netboot", "out", "--firmware", "nest.elf", "--pond", "pond.toml"]));
    without.refused(1, &format!("{} not found: install the Debian packages {PACKAGES}", PROGRAMS.join(", ")));
    fs::remove_file(scratch.path("programs/xorriso")).expect("it was made");
    let line = "name the pond's description by --pond FILE; `duckpond ducks adopt --link …` writes a first one";
    let ran = netboot(&scratch, &[]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), format!("duckpond: {line}\n").as_str()));
    scratch.write("pond.toml", description("eth:enp3s0").replace("public_key", "# public_key"));
    let line = "pond.toml names no key for the ducks to trust: make one by `duckpond key new FILE` and add key = \"FILE\", \
                or give its public_key";
    netboot(&scratch, &["--pond", "pond.toml"]).refused(1, line);
    scratch.write("pond.toml", description("eth:enp3s0"));
    scratch.write("nest.elf", "#!/bin/sh\n");
    netboot(&scratch, &["--pond", "pond.toml"]).refused(1, "nest.elf is no firmware: it is not an ELF for a PC");
    assert!(!scratch.path("out").exists());
}
