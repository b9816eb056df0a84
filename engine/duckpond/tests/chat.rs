//! `duckpond chat` with messages from a pipe.

mod common;

use common::{Scratch, golden, run_with_input};

#[test]
fn every_line_is_a_message_and_answers_stand_alone_on_standard_output() {
    let ran = Scratch::new().run_with_input(&["chat"], "你好\n\nWhat is 1234 + 567?\n".as_bytes());
    ran.succeeded();
    let first = golden("你好").0;
    let mut lines = ran.stdout.lines();
    assert_eq!(lines.next(), Some(&*first));
    assert!(lines.next().is_some_and(|line| !line.is_empty()), "{}", ran.stdout);
    assert_eq!(ran.stderr, "");
}

#[test]
fn after_a_reset_the_conversation_begins_anew() {
    let ran = Scratch::new().run_with_input(&["chat"], "你好\n/reset\nWhat is 1234 + 567?".as_bytes());
    assert_eq!(ran.stdout, format!("{}\n{}\n", golden("你好").0, golden("What is 1234 + 567?").0));
    assert_eq!(ran.succeeded(), ["the conversation is forgotten"]);
}

#[test]
fn figures_of_a_turn_tell_what_was_kept_from_the_one_before() {
    let ran = Scratch::new().run_with_input(&["chat"], "/stats\n你好\n/stats\n你好\n/stats\n".as_bytes());
    let lines = ran.succeeded();
    assert_eq!(lines[0], "no answer yet");
    assert!(common::is_stats(lines[1], 5, 19), "{lines:?}");
    assert_eq!(lines[2], "context: 24 of 2048 positions, 0 of them kept from the turn before");
    let kept =
        lines[4].split(", ").nth(1).and_then(|part| part.split(' ').next()).and_then(|n| n.parse::<usize>().ok());
    assert!(kept.is_some_and(|kept| kept >= 5), "{lines:?}");
}

#[test]
fn thinking_can_be_switched_within_a_conversation() {
    let input = "/think\n/think off\n/think on\nIs 221 prime?\n";
    let ran = Scratch::new().run_with_input(&["chat"], input.as_bytes());
    let (text, ..) = golden("Is 221 prime?");
    assert_eq!(ran.stdout, text.replace("</think>", "\n") + "\n");
    assert_eq!(ran.succeeded(), ["thinking is on", "thinking is off", "thinking is on"]);
}

#[test]
fn what_looks_like_a_command_is_no_message() {
    let ran = Scratch::new().run_with_input(&["chat"], b"/rest\n/help\n/quit\nnot read\n");
    assert_eq!(ran.stdout, "");
    let lines = ran.succeeded();
    assert_eq!(lines[0], "unknown command /rest; /help lists them");
    assert!(lines.iter().any(|line| line.starts_with("/reset ")), "{lines:?}");
}

#[test]
fn a_message_that_does_not_fit_is_told_and_the_conversation_goes_on() {
    let scratch = Scratch::new();
    let long = "7".repeat(3000);
    let input = format!("{long}\nWhat is 1234 + 567?\n");
    let ran = run_with_input(scratch.command(&["chat"]), input.as_bytes());
    assert_eq!(ran.stdout, golden("What is 1234 + 567?").0 + "\n");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert!(
        lines[0].starts_with("duckpond: the prompt has 300") && lines[0].contains("the model allows 2048 positions"),
        "{lines:?}"
    );
    assert_eq!((ran.code, lines[1]), (Some(1), "duckpond: 1 of 2 messages could not be answered"));
}

#[test]
fn a_line_that_is_no_message_is_told_and_the_conversation_goes_on() {
    let scratch = Scratch::new();
    let long = vec![b'7'; (16 << 20) + 1];
    let input = [b"a\xff\n", &long[..], b"\nWhat is 1234 + 567?\n"].concat();
    let ran = run_with_input(scratch.command(&["chat"]), &input);
    assert_eq!(ran.stdout, golden("What is 1234 + 567?").0 + "\n");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let expected = [
        "duckpond: the prompt on standard input is not valid UTF-8: byte 1 is 0xff; convert it first, for instance with iconv",
        "duckpond: the prompt on standard input has more than 16777216 bytes, the most that is read",
        "duckpond: 2 of 3 messages could not be answered",
    ];
    assert_eq!((ran.code, lines), (Some(1), expected.to_vec()));
}

#[test]
fn a_command_with_a_wrong_word_behind_it_says_which_would_do() {
    let ran = Scratch::new().run_with_input(&["chat"], b"/think maybe so\n/stats now\n");
    let expected =
        ["/think takes on, off or nothing, but not maybe so", "/stats takes nothing behind it, but there is now"];
    assert_eq!(ran.succeeded(), expected);
}

#[test]
fn a_request_to_end_stops_the_answer_and_the_conversation() {
    let scratch = Scratch::new();
    scratch.write("input", "9973是质数吗\n9973是质数吗\n");
    let input = std::fs::File::open(scratch.path("input")).expect("just written");
    let mut child = scratch.command(&["chat"]).stdin(input).spawn().expect("the program starts");
    let shown = common::first_output(&mut child);
    common::signal(&child, "TERM");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(143));
    let text = String::from_utf8([shown, output.stdout].concat()).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "{text}");
}
