//! The reference appliance's description, and the ducks that pond.nix makes up.

use std::fs;

use nix_tests::{evaluate, nix_or_missing, repository};
use pond::Pond;
use serde_json::{Value, json};

#[test]
fn the_committed_description_is_the_reference_appliance() {
    let pond = Pond::load(&repository().join("hosts/pigeon/pond.json")).unwrap_or_else(|error| panic!("{error}"));
    let ports: Vec<_> =
        pond.ports.iter().map(|port| (port.link.as_str(), port.lcore, port.subnet.map(String::from))).collect();
    let expected = [4, 6, 8, 2].into_iter().enumerate();
    let expected: Vec<_> = expected
        .map(|(k, lcore)| (format!("dpdk:0000:01:00.{k}"), Some(lcore), Some(format!("10.21.{}.0/24", k + 1))))
        .collect();
    let expected: Vec<_> = expected.iter().map(|(link, lcore, subnet)| (&**link, *lcore, subnet.clone())).collect();
    assert_eq!(ports, expected);
    for port in &pond.ports {
        assert_eq!(pond.ducks_of(&port.name).count(), 8, "{}", port.name);
    }
    pond.check_model(32).expect("a slice each");
    for duck in &pond.ducks {
        let mac = duck.mac.expect("each has one").0;
        assert_eq!(mac[..5], [0x00, 0x00, 0x5e, 0x00, 0x53], "{} is from the documentation range", duck.name);
    }
}

#[test]
fn the_committed_description_is_laid_out_as_the_engine_would() {
    let text = fs::read_to_string(repository().join("hosts/pigeon/pond.json")).expect("readable");
    let pond = Pond::from_json(&text).expect("good");
    assert_eq!(text, format!("{}\n", serde_json::to_string_pretty(&pond).expect("is written")));
}

#[test]
fn the_committed_description_is_what_nix_makes_byte_for_byte() {
    if !nix_or_missing("hosts/pigeon/pond.json against pond.nix is") {
        return;
    }
    let expression = r#"with import (repository + "/nixos-modules/pond.nix"); pretty (import (repository + "/hosts/pigeon/pond.nix"))"#;
    let made = evaluate(expression, &Value::Null).unwrap_or_else(|error| panic!("{error}"));
    let text = fs::read_to_string(repository().join("hosts/pigeon/pond.json")).expect("readable");
    assert_eq!(made.as_str(), Some(&*text), "hosts/pigeon/pond.nix says how to write it anew");
}

/// What `ducks` makes of these arguments, or the line that it ends with.
fn ducks(arguments: Value) -> Result<Value, String> {
    evaluate(r#"(import (repository + "/nixos-modules/pond.nix")).ducks input"#, &arguments)
}

#[test]
fn ducks_of_a_port_are_numbered_and_addressed_in_order() {
    if !nix_or_missing("Lists of ducks are") {
        return;
    }
    let plain = ducks(json!({ "port": "p", "subnet": "10.21.2.0/24", "start": 9, "count": 2 })).expect("good");
    let row = |name: &str, mac: &str, last: u8| json!({ "name": name, "port": "p", "mac": mac, "address": format!("10.21.2.{last}") });
    assert_eq!(plain, json!([row("duck-09", "00:00:5e:00:53:09", 11), row("duck-10", "00:00:5e:00:53:0a", 12)]));
    let more = json!({ "port": "p", "subnet": "10.0.0.0/8", "start": 1, "count": 1, "first": 256, "prefix": "d", "memory": "31GiB",
        "link": 1000, "macs": ["02:00:00:00:00:07"] });
    let row = json!({ "name": "d01", "port": "p", "mac": "02:00:00:00:00:07", "address": "10.0.1.0", "memory": "31GiB", "link": 1000 });
    assert_eq!(ducks(more).expect("good"), json!([row]));
}

#[test]
fn ducks_that_cannot_be_made_are_refused_by_the_argument() {
    if !nix_or_missing("Refused lists of ducks are") {
        return;
    }
    for (arguments, line) in [
        (
            json!({ "subnet": "10.21.2/24", "start": 1 }),
            "subnet: \"10.21.2/24\" is not a subnet such as 10.21.1.0/24; write the one of port p",
        ),
        (
            json!({ "subnet": 7, "start": 1 }),
            "subnet: int is not a subnet such as 10.21.1.0/24; write the one of port p",
        ),
        (
            json!({ "subnet": "10.0.0.0/8", "start": 250 }),
            "start: there is no documentation address for duck 256, only for numbers up to 255; give macs",
        ),
        (
            json!({ "subnet": "10.0.0.0/8", "start": 1, "macs": [] }),
            "macs: there are 0, but port p has 8 ducks; give one for each, or set count",
        ),
    ] {
        let mut arguments = arguments;
        arguments["port"] = json!("p");
        let said = ducks(arguments).expect_err(line);
        assert!(said.lines().any(|said| said.trim() == format!("error: {line}")), "{said}");
    }
}
