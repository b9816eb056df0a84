//! `duckpond pond switch`.

mod common;

use std::fs;
use std::path::Path;

use common::Scratch;
use serde_json::Value;

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

#[test]
fn the_reference_appliance_needs_four_vlans_of_nine_ports() {
    let scratch = Scratch::new();
    let text = fs::read(repository().join("hosts/pigeon/pond.json")).expect("it ships with the code");
    scratch.write("pond.json", text);
    let ran = scratch.run(&["pond", "switch", "pond.json"]);
    assert_eq!(ran.succeeded(), Vec::<&str>::new());
    let begin = "\
pond       pigeon
switch     36 ports in 4 VLANs; or 4 switches that nothing connects

VLAN 101   port0, 10.21.1.0/24, MTU 1500 (frames of 1518 bytes) or more, 9 access ports, untagged, in no other VLAN
  port  device  name     Mbit/s  hardware address   address
  1     host    port0    20000   -                  10.21.1.1
  2     duck    duck-01  2500    00:00:5e:00:53:01  10.21.1.11
";
    assert!(ran.stdout.starts_with(begin), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("\n  36    duck    duck-32  2500    00:00:5e:00:53:20  10.21.4.18\n"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("\n  storm control: off\n"), "{}", ran.stdout);

    let ran = scratch.run(&["pond", "switch", "pond.json", "--json"]);
    ran.succeeded();
    let table: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let vlans = table["vlans"].as_array().expect("a list");
    let sizes: Vec<_> = vlans.iter().map(|vlan| vlan["ports"].as_array().map(Vec::len)).collect();
    assert_eq!(sizes, [Some(9); 4]);
    assert_eq!(vlans[3]["ports"][0]["address"], "10.21.4.1");
}

#[test]
fn a_pond_whose_ducks_are_not_known_yet_can_be_cabled_and_a_wrong_one_is_refused_by_field() {
    let scratch = Scratch::new();
    scratch.write("new.toml", "name = 'new'\nports = [{ name = 'p', link = 'eth:enp3s0' }]\n");
    let ran = scratch.run(&["pond", "switch", "new.toml"]);
    ran.succeeded();
    assert!(ran.stdout.contains("\nswitch     1 port in one broadcast domain\n"), "{}", ran.stdout);
    let wrong = fs::read(repository().join("tests/ponds/bad/subnets-overlap.toml")).expect("it ships with the code");
    scratch.write("wrong.toml", wrong);
    let line = "cannot use the pond: wrong.toml: ports[1].subnet: 10.21.0.0/16 overlaps ports[0].subnet, 10.21.1.0/24";
    scratch.run(&["pond", "switch", "wrong.toml"]).refused(1, line);
}
