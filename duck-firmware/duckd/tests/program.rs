//! The program itself: its exit status, what it says, and its signals.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn duckd(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duckd"));
    command.args(args).env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

fn run(args: &[&str]) -> (Option<i32>, String, String) {
    let output = duckd(args).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_shows_examples_and_exit_status() {
    let (code, out, _) = run(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(out.contains("duckd --link eth:enp1s0 --key pond.pub") && out.contains("Exit status: 0 stopped"), "{out}");
}

#[test]
fn wrong_usage_is_two_and_names_the_value() {
    for (args, expected) in [
        (&["--link", "enp1s0", "--key", KEY][..], "eth:enp1s0"),
        (&["--link", "udp:127.0.0.1:0", "--key", "12ab"], "64 hexadecimal digits"),
        (&["--link", "udp:127.0.0.1:0", "--key", KEY, "--memory", "lots"], "\"lots\""),
        (&["--key", KEY], "--link"),
    ] {
        let (code, _, err) = run(args);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(expected), "{err}");
    }
}

#[test]
fn a_duck_that_cannot_start_is_one_and_says_why() {
    let base = ["--link", "udp:127.0.0.1:0", "--key", KEY, "--no-lock"];
    let (code, _, err) = run(&[&base[..], &["--memory", "10K"]].concat());
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("expected at least 1048576 bytes, found 10240"), "{err}");
    let (code, _, err) = run(&[&base[..], &["--memory", "2M", "--cores", "99"]].concat());
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("cores: expected 1 to 64, found 99"), "{err}");
    let (code, _, err) = run(&["--link", "eth:no-such-port", "--key", KEY]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("no-such-port"), "{err}");
}

#[test]
fn a_terminated_duck_ends_well() {
    let args = ["--link", "udp:127.0.0.1:0", "--key", KEY, "--memory", "2M", "--no-lock", "--huge-pages", "off"];
    let args = [&args[..], &["--id", "test-1", "--cores", "1", "--faults", "loss=10"]].concat();
    let mut child = duckd(&args).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped"));
    let mut said = String::new();
    while !said.contains("test-1 is ready") {
        assert_ne!(lines.read_line(&mut said).expect("text"), 0, "ended early: {said}");
    }
    assert!(said.contains("loss=10"), "{said}");
    let kill = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().expect("kill");
    assert!(kill.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    lines.read_to_string(&mut said).expect("text");
    assert!(said.contains("test-1 stops"), "{said}");
}

#[test]
fn a_log_that_cannot_be_written_ends_no_duck() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let args = ["--link", "udp:127.0.0.1:0", "--key", KEY, "--memory", "2M", "--no-lock", "--huge-pages", "off", "-v"];
    let mut child = duckd(&args).stderr(full).spawn().expect("it starts");
    // Long enough to have said that it is ready; a duck that ended then has its status already.
    std::thread::sleep(std::time::Duration::from_millis(800));
    assert!(child.try_wait().expect("it can be asked").is_none(), "it ended by itself");
    let kill = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().expect("kill");
    assert!(kill.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
