//! `host-setup`, `provenance`, and ponds that this program cannot drive, seen from outside.

mod common;
#[path = "common/http.rs"]
mod http;

use std::fs;
use std::path::Path;

use common::{Scratch, names_in};
use http::Served;

/// A pond with four ports on DPDK.
fn four_ports(scratch: &Scratch) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ponds/good/four-ports.json");
    scratch.write("pond.json", fs::read(path).expect("it ships with the code"));
}

const UDP: &str = "name = \"p\"\nkernels = \"kernels.elf\"\nPLACE\n[[ports]]\nname = \"a\"\nlink = \"udp:127.0.0.1:1\"\n\
                   [[ducks]]\nname = \"b\"\nport = \"a\"\nmemory = \"64MiB\"\n";

#[test]
fn this_machine_is_looked_at_and_left_as_it_is() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["host-setup", "--check"]);
    assert_eq!(ran.succeeded(), Vec::<&str>::new(), "without a pond nothing is missing");
    let states: Vec<&str> = ran.stdout.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(states.iter().all(|state| ["ok", "note", "warning", "", "together", "this"].contains(state)), "{states:?}");
    for name in ["instructions", "governor", "memory", "iommu", "network cards"] {
        assert!(ran.stdout.lines().any(|line| line.get(9..).is_some_and(|rest| rest.starts_with(name))), "{name}");
    }
    assert_eq!(names_in(&scratch.path("")), Vec::<String>::new());
}

#[test]
fn what_a_pond_lacks_here_is_told_by_the_exit_code_and_for_programs() {
    let scratch = Scratch::new();
    let text = "name = \"p\"\nports = [{ name = \"a\", link = \"dpdk:ffff:ff:1f.7\", lcore = 1023 }]\n\
                ducks = [{ name = \"b\", port = \"a\" }]";
    scratch.write("pond.toml", text);
    let ran = scratch.run(&["host-setup", "--check", "--json", "--pond", "pond.toml"]);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    let missing = json["missing"].as_u64().expect("a number");
    assert!(missing >= 3, "no such card, no such processor, nothing said of huge pages: {json}");
    let line = format!("duckpond: {missing} needed things are missing on this machine: do what the lines say\n");
    assert_eq!((ran.code, ran.stderr), (Some(1), line));
    let ran = scratch.run(&["host-setup", "--check", "--pond", "pond.toml"]);
    let begin = "missing  card                  port a, ffff:ff:1f.7: no such device; network cards here: ";
    assert_eq!((ran.code, ran.stdout.lines().filter(|line| line.starts_with(begin)).count()), (Some(1), 1));
}

#[test]
fn checking_is_all_it_does_and_has_to_be_asked_for() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["host-setup"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--check"), "{}", ran.stderr);
    let ran = scratch.run(&["host-setup", "--check", "--pond", "nowhere.toml"]);
    assert!(ran.stderr.starts_with("duckpond: cannot use the pond: nowhere.toml: cannot be read: "), "{}", ran.stderr);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
}

#[test]
fn ports_on_dpdk_are_refused_at_once_in_one_line_that_says_what_to_do() {
    let scratch = Scratch::new();
    four_ports(&scratch);
    let ports = (0..4).map(|i| format!("port{i} (dpdk:0000:01:00.{i})")).collect::<Vec<_>>().join(", ");
    let line = format!(
        "this engine is built without DPDK, which the pond's {ports} need: give these cards back to the kernel and write \
         link = \"eth:INTERFACE\" for them"
    );
    scratch.run(&["generate", "--pond", "pond.json", "x"]).refused(1, &line);
    scratch.run(&["serve", "--port", "0", "--pond", "pond.json"]).refused(1, &line);
}

#[test]
fn the_program_for_ducks_is_told_with_its_hash_and_signature() {
    let scratch = Scratch::new();
    scratch.run(&["key", "new", "pond.key"]).succeeded();
    scratch.write("kernels.elf", "an ELF");
    // Of a file with these six bytes, as `nix hash path` prints it.
    let hash = "sha256-x81QVplIvX55QCljUMeXGgUukOGnGSTgpAzziOIYSls=";
    let told = |place: &str| {
        scratch.write("pond.toml", UDP.replace("PLACE", place));
        let ran = scratch.run(&["provenance", "--pond", "pond.toml"]);
        assert_eq!(ran.succeeded(), Vec::<&str>::new());
        let value =
            |name: &str| ran.stdout.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim().to_owned();
        (value("kernels"), value("  nar hash"), value("  signature"))
    };
    let expected = |hash: String, signature: &str| ("kernels.elf".to_owned(), hash, signature.to_owned());
    let unsaid = format!("{hash} (the description says nothing of it)");
    assert_eq!(told(""), expected(unsaid.clone(), "not checked: no key of the pond can be read here"));
    scratch.run(&["sign", "kernels.elf", "--key", "pond.key"]).succeeded();
    assert_eq!(told("key = \"pond.key\""), expected(unsaid, "good"));
    let described = |hash: &str| told(&format!("key = \"pond.key\"\nkernels_hash = \"{hash}\"")).1;
    assert_eq!(described(hash), format!("{hash} (as described)"));
    let other = "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY=";
    assert_eq!(described(other), format!("{hash} (described: {other})"));
    let ran = scratch.run(&["provenance", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).expect("it is JSON");
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        json["program"],
        fs::canonicalize(env!("CARGO_BIN_EXE_duckpond")).expect("it is there").to_str().expect("text")
    );
    assert_eq!(json["kernels"], serde_json::Value::Null);
}

#[test]
fn a_program_that_is_not_the_described_one_is_not_sent_and_the_log_says_what_runs() {
    let scratch = Scratch::new();
    scratch.run(&["key", "new", "pond.key"]).succeeded();
    scratch.write("kernels.elf", "an ELF");
    scratch.run(&["sign", "kernels.elf", "--key", "pond.key"]).succeeded();
    let other = "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY=";
    let hash = "sha256-x81QVplIvX55QCljUMeXGgUukOGnGSTgpAzziOIYSls=";
    let place = format!("key = \"pond.key\"\nkernels_hash = \"{other}\"");
    scratch.write("pond.toml", UDP.replace("PLACE", &place).replace("udp:127.0.0.1:1", "udp:127.0.0.1:0"));
    let ran = scratch.run(&["generate", "--pond", "pond.toml", "--log", "info", "x"]);
    let line = format!(
        "duckpond: kernels.elf has the NAR hash {hash}, expected {other} by the pond's kernels_hash: use the program that \
         belongs to this description, or write its own hash there if this one is meant"
    );
    assert_eq!((ran.code, ran.stderr.lines().last()), (Some(1), Some(&*line)));
    let log = ran.stderr.lines().find(|line| line.contains("provenance: ")).expect("a line of the log");
    assert!(log.contains(&format!("kernels {hash} (described: {other}), signature good")), "{log}");
}

#[test]
fn images_are_made_of_the_described_firmware_only() {
    let scratch = Scratch::new();
    scratch.run(&["key", "new", "pond.key"]).succeeded();
    scratch.write("nest.elf", "an ELF");
    let other = "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY=";
    scratch.write("pond.toml", UDP.replace("PLACE", &format!("key = \"pond.key\"\nnest_hash = \"{other}\"")));
    let ran = scratch.run(&["netboot", "out", "--firmware", "nest.elf", "--pond", "pond.toml"]);
    let begin = "duckpond: nest.elf has the NAR hash sha256-x81QVplIvX55QCljUMeXGgUukOGnGSTgpAzziOIYSls=, expected ";
    assert!(ran.stderr.starts_with(&format!("{begin}{other} by the pond's nest_hash: ")), "{}", ran.stderr);
    assert!(!scratch.path("out").exists());
}

#[test]
fn a_server_tells_what_computes_and_what_ducks_are_sent() {
    let program = fs::canonicalize(env!("CARGO_BIN_EXE_duckpond")).expect("it is there");
    let here = Served::start(&[]);
    let found = here.get("/pond").json()["pond"]["build"].take();
    assert_eq!(found["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(found["program"], program.to_str().expect("text"));
    assert_eq!(found["kernels_hash"], "");
    let scratch = Scratch::new();
    scratch.run(&["key", "new", "pond.key"]).succeeded();
    scratch.write("kernels.elf", "an ELF");
    scratch.run(&["sign", "kernels.elf", "--key", "pond.key"]).succeeded();
    let pond = UDP.replace("PLACE", "key = \"pond.key\"").replace("udp:127.0.0.1:1", "udp:127.0.0.1:0");
    scratch.write("pond.toml", pond);
    let there = Served::start_in(scratch, &["--pond", "pond.toml"]);
    let hash = "sha256-x81QVplIvX55QCljUMeXGgUukOGnGSTgpAzziOIYSls=";
    assert_eq!(there.get("/pond").json()["pond"]["build"]["kernels_hash"], hash);
    let page = there.get("/metrics").body;
    let series = page.lines().filter(|line| line.starts_with("duckpond_build_info{")).collect::<Vec<_>>();
    assert!(series.len() == 1 && series[0].ends_with(&format!("kernels_hash=\"{hash}\"}} 1")), "{series:?}");
}
