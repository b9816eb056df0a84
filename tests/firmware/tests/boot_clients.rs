//! Clients that others wrote, against the boot service on a packet socket: DHCP by udhcpc, TFTP by curl, busybox and tftp-hpa, and the
//! kernel's own ARP and ping.
//!
//! It needs root, iproute2 and the programs. Without them it says so and passes, or fails with `DUCKPOND_REQUIRE_NET=1`.

use std::fs;
use std::process::{Command, Output};
use std::sync::Arc;

use boot::{BIOS, BootFile, Config, EFI_X64, Files, Lease, Mac, Service};
use firmware_tests::net::{INTERFACE, Net, has_programs};
use firmware_tests::serving::Serving;
use tempfile::TempDir;

const PROGRAMS: [(&str, &str); 3] = [("udhcpc", "udhcpc"), ("busybox", "busybox"), ("curl", "curl")];
const DUCK: &str = "02:00:00:00:01:07";

/// Bytes that repeat nowhere soon.
fn content(length: usize) -> Arc<[u8]> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn config() -> Config {
    let files: Files = [("duck.efi", 0x12_3456), ("empty", 0), ("block", 512), ("longest", 1468), ("many", 34_000_000)]
        .map(|(name, length)| (name.into(), content(length)))
        .into();
    let boot = |architecture| BootFile { architecture, name: "duck.efi".into() };
    Config {
        mac: Mac([2, 0, 0, 0, 0, 1]),
        mtu: 1500,
        address: [10, 21, 1, 1].into(),
        prefix: 24,
        leases: vec![Lease {
            mac: Mac([2, 0, 0, 0, 1, 7]),
            address: [10, 21, 1, 17].into(),
            name: "d7".into(),
            text: "".into(),
        }],
        adopt: None,
        files,
        boot_files: [BIOS, EFI_X64[0], EFI_X64[1]].map(boot).into(),
    }
}

fn serve(config: Config) -> Option<(Net, Serving)> {
    if !has_programs(&PROGRAMS) {
        return None;
    }
    let net = Net::new()?;
    let link = net.host(&[0x0800, 0x0806, 0x88b5]);
    let service = Service::new(Config { mac: link.mac(), ..config }).expect("a good configuration");
    Some((net, Serving::start(service, link)))
}

/// Runs a shell's line in a namespace.
fn run(namespace: &str, line: &str) -> Output {
    let command = ["netns", "exec", namespace, "timeout", "60", "sh", "-c", line];
    Command::new("ip").args(command).output().expect("iproute2 is there: it has made the namespace")
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Asks for an address and takes it. Returns what udhcpc's script was told, or all that it said.
fn dhcp(namespace: &str) -> Result<String, String> {
    let folder = TempDir::new().expect("a folder");
    let script = folder.path().join("script");
    let text = "#!/bin/sh\n[ \"$1\" = bound ] || exit 0\nip address add $ip/$mask dev $interface\n\
                echo \"ip=$ip mask=$mask siaddr=$siaddr hostname=$hostname file=$boot_file server=$tftp lease=$lease router=$router.\"\n";
    fs::write(&script, text).expect("it is ours");
    let line = format!(
        "chmod +x {0}; udhcpc -i {INTERFACE} -f -n -q -t 3 -T 1 -O bootfile -O tftp -x 0x5d:0007 -V PXEClient -s {0}",
        script.display()
    );
    let output = run(namespace, &line);
    let told = String::from_utf8_lossy(&output.stdout).lines().find(|line| line.starts_with("ip=")).map(str::to_owned);
    told.ok_or_else(|| said(&output))
}

#[test]
fn a_duck_gets_its_address_and_fetches_files_with_every_client() {
    let Some((net, serving)) = serve(config()) else { return };
    let duck = net.program(DUCK);
    let told = dhcp(&duck).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(
        told,
        "ip=10.21.1.17 mask=24 siaddr=10.21.1.1 hostname=d7 file=duck.efi server=10.21.1.1 lease=86400 router=."
    );
    let ping = run(&duck, "busybox ping -c 2 -s 1400 10.21.1.1");
    assert!(ping.status.success(), "{}", said(&ping));

    let config = config();
    for name in ["duck.efi", "empty", "block", "longest"] {
        // curl believes no server that a file is empty; without options it is not told.
        if name != "empty" {
            let fetched = run(&duck, &format!("curl -sS --tftp-blksize 1468 tftp://10.21.1.1/{name}"));
            assert!(fetched.stdout == *config.files[name], "{name}: {}", said(&fetched).len());
        }
        let plain = run(&duck, &format!("curl -sS --tftp-no-options tftp://10.21.1.1//{name}"));
        assert!(plain.stdout == *config.files[name], "{name} in blocks of 512: {}", said(&plain).len());
        let busybox = run(&duck, &format!("busybox tftp -g -b 1024 -r {name} -l /dev/stdout 10.21.1.1"));
        assert!(busybox.stdout == *config.files[name], "{name} by busybox: {} bytes", busybox.stdout.len());
    }
    // More blocks than there are numbers.
    let many = run(&duck, "curl -sS --tftp-blksize 512 tftp://10.21.1.1/many");
    assert!(many.stdout == *config.files["many"], "{} bytes", many.stdout.len());

    let events = serving.events();
    let expected = [
        "d7 asks for an address and is offered 10.21.1.17",
        "d7 has taken 10.21.1.17",
        "d7 fetches duck.efi, 1193046 bytes",
    ];
    assert_eq!(events[..3], expected, "{events:?}");
    assert!(events.iter().filter(|event| event.contains("has fetched")).count() == 12, "{events:?}");
}

#[test]
fn other_names_are_refused_and_nobody_writes() {
    let Some((net, serving)) = serve(config()) else { return };
    let duck = net.program(DUCK);
    dhcp(&duck).unwrap_or_else(|said| panic!("{said}"));
    for name in ["none", "../etc/passwd", "/../../etc/passwd", "duck.efi/", "DUCK.EFI", ""] {
        let refused = run(&duck, &format!("curl -sS --path-as-is 'tftp://10.21.1.1/{name}'"));
        // 68: not found; an empty name is curl's own business.
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{name}: {}", said(&refused));
    }
    let written = run(
        &duck,
        "echo x > /dev/shm/$$; busybox tftp -p -l /dev/shm/$$ -r empty 10.21.1.1; s=$?; rm /dev/shm/$$; exit $s",
    );
    assert!(!written.status.success() && said(&written).contains("only read"), "{}", said(&written));
    let events = serving.events();
    assert!(events.iter().any(|e| e == "d7 asks for the file \"../etc/passwd\", which is not there"), "{events:?}");
}

#[test]
fn strangers_get_nothing_unless_they_are_being_adopted() {
    let Some((net, serving)) = serve(config()) else { return };
    let stranger = net.program("02:00:00:00:09:09");
    dhcp(&stranger).expect_err("nobody knows it");
    // Nor does an address that it gives itself help.
    run(&stranger, &format!("ip address add 10.21.1.17/24 dev {INTERFACE}"));
    let refused = run(&stranger, "curl -sS -m 3 tftp://10.21.1.1/empty");
    assert!(!refused.status.success(), "{}", said(&refused));
    let told = serving.events();
    assert_eq!(told, ["02:00:00:00:09:09 asks for an address, and no duck has that hardware address"]);
    drop((serving, net));

    let adopt = Some([10, 21, 1, 200].into()..=[10, 21, 1, 210].into());
    let Some((net, serving)) = serve(Config { adopt, ..config() }) else { return };
    let stranger = net.program("02:00:00:00:09:09");
    let told = dhcp(&stranger).unwrap_or_else(|said| panic!("{said}"));
    assert!(told.starts_with("ip=10.21.1.200 ") && told.contains(" hostname= "), "{told}");
    let fetched = run(&stranger, "curl -sS tftp://10.21.1.1/block");
    assert_eq!(fetched.stdout, *content(512));
    assert!(serving.events().iter().any(|event| event.starts_with("02:00:00:00:09:09 has fetched block")));
}
