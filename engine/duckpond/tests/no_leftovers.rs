//! Whatever ends the program, and whenever: nothing temporary stays.

mod common;

use std::time::Duration;

use common::{Scratch, names_in, signal};

/// Runs a command and sends a signal after `delay`; the files that stay, and what it printed.
fn killed(arguments: &[&str], name: &str, delay: Duration) -> (Vec<String>, String) {
    let scratch = Scratch::new();
    let temporary = scratch.path("temporary");
    std::fs::create_dir(&temporary).expect("below the scratch folder");
    // Whoever runs the tests may have hang-ups ignored, which programs inherit.
    let mut whole = vec!["--default-signal=HUP", env!("CARGO_BIN_EXE_duckpond")];
    whole.extend(arguments);
    let mut command = scratch.command_of(std::path::Path::new("/usr/bin/env"), &whole);
    if arguments.contains(&"--synthetic") {
        command.env_remove("DUCKPOND_MODEL");
    }
    let child = command.env("TMPDIR", &temporary).spawn().expect("the program starts");
    std::thread::sleep(delay);
    signal(&child, name);
    let output = child.wait_with_output().expect("the program ends");
    // It may have ended before; a signal before anything listens for it ends it, too.
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("duckpond: "), "{stderr}");
    let left = names_in(&temporary).into_iter().chain(names_in(&scratch.path("")));
    (left.filter(|name| name.contains("duckpond-")).collect(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_trace_in_the_making_goes_away() {
    for round in 0..20 {
        let name = ["INT", "TERM", "HUP"][round % 3];
        let arguments = ["generate", "--trace", "out.csv", "9973是质数吗"];
        let (left, _) = killed(&arguments, name, Duration::from_millis(7 * round as u64));
        assert_eq!(left, Vec::<String>::new(), "after {name} in round {round}");
    }
}

#[test]
fn weights_in_the_making_go_away_at_once() {
    let arguments = ["bench", "--synthetic", "--active-bytes", "500MiB", "--prefill", "4", "--decode", "3"];
    for round in 0..20 {
        let name = ["INT", "TERM", "HUP"][round % 3];
        let (left, figures) = killed(&arguments, name, Duration::from_millis(5 + 60 * round as u64));
        assert_eq!(left, Vec::<String>::new(), "after {name} in round {round}");
        assert_eq!(figures, "", "it went on after {name} in round {round}");
    }
}

#[test]
fn a_hang_up_that_is_to_be_ignored_is_ignored() {
    let scratch = Scratch::new();
    let script = "trap '' HUP; exec \"$0\" generate 9973是质数吗";
    let program = env!("CARGO_BIN_EXE_duckpond");
    let mut command = scratch.command_of(std::path::Path::new("/bin/sh"), &["-c", script, program]);
    let mut child = command.spawn().expect("sh starts");
    let shown = common::first_output(&mut child);
    signal(&child, "HUP");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8([shown, output.stdout].concat()).expect("UTF-8");
    assert_eq!(text, common::golden("9973是质数吗").0 + "\n");
}
