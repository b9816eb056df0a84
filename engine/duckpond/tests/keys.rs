//! `duckpond key`, `duckpond sign` and `duckpond pond check`.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Scratch, names_in};

/// A scratch folder with a key; its public key.
fn with_key() -> (Scratch, String) {
    let scratch = Scratch::new();
    let ran = scratch.run(&["key", "new", "secret"]);
    assert_eq!(ran.succeeded(), Vec::<&str>::new());
    let public = ran.stdout.strip_suffix('\n').expect("one line").to_owned();
    assert_eq!((public.len(), public.bytes().all(|byte| byte.is_ascii_hexdigit())), (64, true), "{public}");
    (scratch, public)
}

#[test]
fn a_new_key_is_private_and_only_its_public_half_is_shown() {
    let (scratch, public) = with_key();
    let path = scratch.path("secret");
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o600);
    let secret = fs::read_to_string(&path).expect("read");
    assert!(
        secret.starts_with("duckpond-secret-key-1 ") && !secret.contains(&public),
        "the secret is not the public key"
    );
    let shown = scratch.run(&["key", "public", "secret"]);
    assert_eq!(shown.succeeded(), Vec::<&str>::new());
    assert_eq!(shown.stdout, format!("{public}\n"));
    scratch
        .run(&["key", "new", "secret"])
        .refused(1, "secret exists already and is kept; name another file, or move it away");
    assert_eq!(fs::read_to_string(&path).expect("read"), secret);
}

#[test]
fn a_key_that_is_open_or_none_is_refused_in_one_line() {
    let (scratch, _) = with_key();
    fs::set_permissions(scratch.path("secret"), fs::Permissions::from_mode(0o644)).expect("set");
    let line = "secret can be read by others (mode 0644); run chmod 600 secret, or make a new key if others may have";
    scratch.run(&["key", "public", "secret"]).refused(1, line);
    scratch.write("program", "code");
    scratch.run(&["sign", "program", "--key", "secret"]).refused(1, line);
    scratch.write("short", "duckpond-secret-key-1 0123\n");
    fs::set_permissions(scratch.path("short"), fs::Permissions::from_mode(0o600)).expect("set");
    let line = "short is no secret key: 4 characters follow duckpond-secret-key-1, expected 64 hexadecimal digits";
    scratch.run(&["key", "public", "short"]).refused(1, line);
    let ran = scratch.run(&["key", "public", "nowhere"]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1));
    assert_eq!(names_in(&scratch.path("")), ["program", "secret", "short"]);
}

#[test]
fn a_signature_is_made_checked_and_missed_when_the_program_changes() {
    let (scratch, public) = with_key();
    scratch.write("program", "code");
    scratch.write("public", format!("{public}\n"));
    let check = || scratch.run(&["sign", "program", "--verify", "--key", "public"]);
    let ran = check();
    assert!(ran.stderr.starts_with("duckpond: cannot read program.sig: "), "{}", ran.stderr);
    let signed = scratch.run(&["sign", "program", "--key", "secret"]);
    assert_eq!((signed.succeeded(), &*signed.stdout), (vec![], "signature     program.sig\n"));
    let signature = fs::read_to_string(scratch.path("program.sig")).expect("read");
    assert_eq!((signature.len(), signature.lines().count()), (129, 1));
    for key in ["public", "secret"] {
        let good = scratch.run(&["sign", "program", "--verify", "--key", key]);
        assert_eq!((good.succeeded(), &*good.stdout), (vec![], "verified      program\n"));
    }
    scratch.write("program", "other code");
    let line = format!(
        "program.sig is not the signature of program by the key {public}: the file was changed, or another key signed it"
    );
    check().refused(1, &line);
    scratch.run(&["sign", "program", "--key", "secret"]).succeeded();
    check().succeeded();
    assert_eq!(names_in(&scratch.path("")), ["program", "program.sig", "public", "secret"]);
}

#[test]
fn a_pond_is_shown_or_refused_by_field() {
    let scratch = Scratch::new();
    let ponds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ponds");
    let copy =
        |file: &str, name: &str| scratch.write(name, fs::read(ponds.join(file)).expect("it ships with the code"));
    copy("good/four-ports.json", "pond.json");
    let ran = scratch.run(&["pond", "check", "pond.json"]);
    assert_eq!(ran.succeeded(), Vec::<&str>::new());
    let expected = "\
pond          four-ports
key           /run/secrets/pond-key
isolated      2, 4, 6, 8
huge pages    2 of 1GiB
port          port0 on dpdk:0000:01:00.0, processor 4, 10.21.1.0/24, 8 ducks
port          port1 on dpdk:0000:01:00.1, processor 6, 10.21.2.0/24, 8 ducks
port          port2 on dpdk:0000:01:00.2, processor 8, 10.21.3.0/24, 8 ducks
port          port3 on dpdk:0000:01:00.3, processor 2, 10.21.4.0/24, 8 ducks
ducks         32 ducks
state         consistent
";
    assert_eq!(ran.stdout, expected);
    copy("bad/mac-twice.toml", "pond.toml");
    let line = "cannot use the pond: pond.toml: ducks[2].mac: 02:00:00:00:01:01 is already ducks[0].mac";
    scratch.run(&["pond", "check", "pond.toml"]).refused(1, line);
    let ran = scratch.run(&["pond", "check", "nowhere"]);
    assert!(ran.stderr.starts_with("duckpond: cannot use the pond: nowhere: cannot be read: "), "{}", ran.stderr);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1));
}
