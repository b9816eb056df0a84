//! `duckpond generate` as a person or a script uses it.

mod common;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

use common::{Scratch, duckling, first_output, golden, is_stats, names_in, run, run_with_input};

#[test]
fn the_first_command_of_the_readme_gives_the_right_answer() {
    let ran = Scratch::new().run(&["generate", "9973是质数吗"]);
    let (text, input, output) = golden("9973是质数吗");
    assert_eq!(ran.stdout, text + "\n");
    assert!(ran.stdout.ends_with("是，9973是质数。\n"));
    let lines = ran.succeeded();
    assert!(lines.len() == 1 && is_stats(lines[0], input, output), "{lines:?}");
}

#[test]
fn the_prompt_can_come_from_standard_input_or_a_file_with_a_line_end() {
    let scratch = Scratch::new();
    let (text, input, output) = golden("What is 1234 + 567?");
    let expected = text + "\n";
    let piped = scratch.run_with_input(&["generate", "-"], b"What is 1234 + 567?\n");
    assert_eq!(piped.stdout, expected);
    // Duckling gives the same answer to a prompt with a line end; the number of tokens tells.
    assert!(is_stats(piped.succeeded()[0], input, output), "{}", piped.stderr);
    scratch.write("prompt.txt", "What is 1234 + 567?\r\n");
    let from_file = scratch.run(&["generate", "--file", "prompt.txt"]);
    assert_eq!(from_file.stdout, expected);
    assert!(is_stats(from_file.succeeded()[0], input, output), "{}", from_file.stderr);
}

#[test]
fn a_raw_prompt_is_taken_as_it_is_with_its_markers() {
    let scratch = Scratch::new();
    let prompt = "<｜begin▁of▁sentence｜><｜User｜>What is 1234 + 567?<｜Assistant｜></think>";
    let ran = scratch.run(&["generate", "--raw", prompt]);
    let (text, input, output) = golden("What is 1234 + 567?");
    assert_eq!(ran.stdout, text + "\n");
    assert!(is_stats(ran.succeeded()[0], input, output), "{}", ran.stderr);
    // In a chat prompt the same text is only text.
    let quoted = scratch.run(&["generate", "--max-tokens", "1", prompt]);
    let other = scratch.run(&["generate", "--max-tokens", "1", "What is 1234 + 567?"]);
    assert_ne!(quoted.succeeded()[0].split(", ").nth(1), other.succeeded()[0].split(", ").nth(1));
}

#[test]
fn reasoning_and_answer_are_lines_of_their_own_without_markers() {
    let ran = Scratch::new().run(&["generate", "--think", "Is 221 prime?"]);
    let (text, ..) = golden("Is 221 prime?");
    let (reasoning, answer) = text.split_once("</think>").expect("it thinks first");
    assert_eq!(ran.stdout, format!("{reasoning}\n{answer}\n"));
    ran.succeeded();
}

#[test]
fn instructions_are_part_of_the_prompt() {
    let scratch = Scratch::new();
    let input = |ran: &common::Ran| ran.succeeded()[0].split(", ").nth(1).map(str::to_owned);
    let plain = scratch.run(&["generate", "--max-tokens", "1", "你好"]);
    let instructed = scratch.run(&["generate", "--max-tokens", "1", "--system", "You are Duckling.", "你好"]);
    assert_ne!(input(&plain), input(&instructed));
}

#[test]
fn a_stop_string_ends_the_text_before_itself_and_quietly() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["generate", "--stop", "nowhere", "--stop", "= 18", "What is 1234 + 567?"]);
    assert_eq!(ran.stdout, "1234 + 567 \n");
    let lines = ran.succeeded();
    assert!(lines.len() == 1 && lines[0].starts_with("Generation stats: "), "{lines:?}");
    let whole = golden("What is 1234 + 567?").2;
    let made = lines[0].split("output_len ").nth(1).and_then(|rest| rest.split(',').next()?.parse::<usize>().ok());
    assert!(made.is_some_and(|made| made < whole), "no token is made behind the stop string: {lines:?}");
}

#[test]
fn a_limit_on_tokens_is_told() {
    let ran = Scratch::new().run(&["generate", "--max-tokens", "16", "9973是质数吗"]);
    let lines = ran.succeeded();
    assert!(is_stats(lines[0], 9, 16), "{lines:?}");
    assert_eq!(lines[1..], ["stopped: --max-tokens 16 reached"]);
    let (text, ..) = golden("9973是质数吗");
    assert!(text.starts_with(ran.stdout.trim_end_matches('\n')) && ran.stdout.len() > 8, "{}", ran.stdout);
}

#[test]
fn a_full_context_ends_the_answer_with_a_reason() {
    let ran = Scratch::new().run(&["generate", "--max-len", "40", "9973是质数吗"]);
    let lines = ran.succeeded();
    assert_eq!(lines[1..], ["stopped: context full at 40 positions; raise --max-len (the model allows 2048)"]);
    assert!(golden("9973是质数吗").0.starts_with(ran.stdout.trim_end_matches('\n')));
}

#[test]
fn drafts_are_counted_and_change_nothing() {
    let ran = Scratch::new().run(&["generate", "--mtp", "Is 221 prime?", "--think"]);
    let (text, input, output) = golden("Is 221 prime?");
    assert_eq!(ran.stdout, text.replace("</think>", "\n") + "\n");
    let lines = ran.succeeded();
    assert!(is_stats(lines[0], input, output), "{lines:?}");
    let counts: Vec<usize> = lines[1].split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(lines[1].starts_with("MTP: accepted ") && lines[1].ends_with(" %)"), "{lines:?}");
    assert!(counts[0] <= counts[1] && counts[1] > output / 3, "{lines:?}");
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_one_another() {
    let scratch = Scratch::new();
    let sample = |seed: &str| {
        let flags = ["generate", "--temperature", "8", "--max-tokens", "30", "--seed", seed, "你好"];
        let ran = scratch.run(&flags);
        ran.succeeded();
        ran.stdout
    };
    assert_eq!(sample("7"), sample("7"));
    assert_ne!(sample("7"), sample("8"));
}

#[test]
fn neither_ducks_nor_threads_nor_chunks_change_the_text() {
    let scratch = Scratch::new();
    let expected = golden("What is 1234 + 567?").0 + "\n";
    for flags in [["--ducks", "1"], ["--ducks", "32"], ["--threads", "1"], ["--chunk", "1"], ["--chunk", "7"]] {
        let ran = scratch.run(&[&["generate", "What is 1234 + 567?"], &flags[..]].concat());
        ran.succeeded();
        assert_eq!(ran.stdout, expected, "{flags:?}");
    }
}

#[test]
fn the_trace_has_a_row_for_each_token_and_its_texts_are_the_answer() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["generate", "--mtp", "--trace", "out.csv", "Is 221 prime?", "--think"]);
    ran.succeeded();
    let (text, _, output) = golden("Is 221 prime?");
    let rows = csv(&std::fs::read_to_string(scratch.path("out.csv")).expect("it was written"));
    assert_eq!(rows[0], ["index", "ms", "token", "text", "draft", "accepted"]);
    assert_eq!(rows.len(), output + 1);
    let column = |i: usize| rows[1..].iter().map(|row| row[i].as_str()).collect::<Vec<_>>();
    assert_eq!(column(3).concat(), text + "<｜end▁of▁sentence｜>");
    assert_eq!(column(0), (0..output).map(|i| i.to_string()).collect::<Vec<_>>());
    let times: Vec<f64> = column(1).iter().map(|ms| ms.parse().expect("a number")).collect();
    assert!(times.is_sorted() && times[0] > 0.0, "{times:?}");
    let accepted = rows[1..].iter().filter(|row| row[5] == "true").count();
    assert!(ran.stderr.contains(&format!("MTP: accepted {accepted} of ")), "{}", ran.stderr);
    for row in &rows[1..] {
        assert!(
            row[5]
                == if row[4].is_empty() {
                    ""
                } else if row[4] == row[2] {
                    "true"
                } else {
                    "false"
                },
            "{row:?}"
        );
    }
    assert_eq!(names_in(&scratch.path("")), ["out.csv"], "no temporary file stays");
}

#[test]
fn a_full_disk_costs_the_trace_and_not_the_answer() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["generate", "--trace", "/dev/full", "What is 1234 + 567?"]);
    assert_eq!(ran.stdout, golden("What is 1234 + 567?").0 + "\n");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!((ran.code, lines.len()), (Some(1), 2), "{lines:?}");
    assert_eq!(lines[1], "duckpond: cannot write the trace /dev/full: No space left on device (os error 28)");
}

#[test]
fn a_trace_that_could_not_be_completed_does_not_appear() {
    let scratch = Scratch::new();
    // The limit is 512 bytes; the signal that comes with it is ignored, so that writing fails as on a full disk.
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$0\" generate --trace out.csv \"Is 221 prime?\"";
    let mut command = scratch.command_of(Path::new("/bin/sh"), &["-c", script, env!("CARGO_BIN_EXE_duckpond")]);
    let ran = run(&mut command);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let told = ran.stderr.lines().last();
    assert_eq!(told, Some("duckpond: cannot write the trace out.csv: File too large (os error 27)"));
    assert!(ran.stdout.ends_with("13 × 17.\n"), "{}", ran.stdout);
    assert_eq!(names_in(&scratch.path("")), Vec::<String>::new());
}

#[test]
fn a_trace_with_nowhere_to_go_is_refused_before_work() {
    let ran = Scratch::new().run(&["generate", "--trace", "nowhere/out.csv", "你好"]);
    ran.refused(1, "cannot write the trace nowhere/out.csv: No such file or directory (os error 2)");
}

#[test]
fn a_seed_that_nobody_gave_is_told_and_gives_the_same_answer_again() {
    let scratch = Scratch::new();
    let flags = ["generate", "--temperature", "8", "--max-tokens", "30", "你好"];
    let first = scratch.run(&flags);
    let lines = first.succeeded();
    let seed = lines[1].strip_prefix("seed: ").expect("it follows the figures");
    let again = scratch.run(&[&flags[..], &["--seed", seed]].concat());
    assert!(!again.stderr.contains("seed: "), "{}", again.stderr);
    assert_eq!(again.stdout, first.stdout);
}

#[test]
fn a_trace_keeps_the_permissions_of_the_file_that_it_replaces() {
    let scratch = Scratch::new();
    let path = scratch.write("out.csv", "old");
    std::fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("it is ours");
    scratch.run(&["generate", "--max-tokens", "2", "--trace", "out.csv", "你好"]).succeeded();
    assert_eq!(std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777, 0o640);
    assert_eq!(csv(&std::fs::read_to_string(&path).expect("it is text")).len(), 3);
}

#[test]
fn a_trace_follows_a_link_to_a_file_that_is_not_there_yet() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path("there")).expect("below the scratch folder");
    std::os::unix::fs::symlink("there/out.csv", scratch.path("link.csv")).expect("below the scratch folder");
    scratch.run(&["generate", "--max-tokens", "2", "--trace", "link.csv", "你好"]).succeeded();
    assert!(scratch.path("link.csv").is_symlink());
    assert_eq!(names_in(&scratch.path("there")), ["out.csv"]);
}

#[test]
fn traces_that_would_do_harm_are_refused_before_work() {
    let scratch = Scratch::new();
    let out = std::fs::File::create(scratch.path("out.csv")).expect("below the scratch folder");
    let ran = run(scratch.command(&["generate", "--trace", "out.csv", "你好"]).stdout(Stdio::from(out)));
    ran.refused(2, "the trace out.csv is where standard output goes; name another file");
    let ran = scratch.run(&["generate", "--trace", "/dev/stdout", "你好"]);
    ran.refused(2, "the trace /dev/stdout is where standard output goes; name another file");
    let model = duckling();
    let config = model.join("config.json").display().to_string();
    let ran = scratch.run(&["generate", "--trace", &config, "你好"]);
    ran.refused(2, &format!("the trace {config} is in the model's folder {}; name a file elsewhere", model.display()));
    let ran = scratch.run(&["generate", "--trace", "folder/", "你好"]);
    ran.refused(1, "cannot write the trace folder/: is a directory");
    let ran = scratch.run(&["generate", "--trace", "/proc/out.csv", "你好"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(!ran.stderr.contains(".duckpond-trace"), "{}", ran.stderr);
    assert_eq!(names_in(&scratch.path("")), ["out.csv"]);
}

#[test]
fn the_trace_of_an_answer_that_was_stopped_has_the_tokens_that_were_shown() {
    let scratch = Scratch::new();
    scratch.write("out.csv", "old");
    let flags = ["generate", "--trace", "out.csv", "9973是质数吗"];
    let mut child = scratch.command(&flags).spawn().expect("the program starts");
    let shown = first_output(&mut child);
    assert!(!shown.is_empty());
    common::signal(&child, "INT");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(130));
    let rows = csv(&std::fs::read_to_string(scratch.path("out.csv")).expect("it was written"));
    let text: String = rows[1..].iter().map(|row| row[3].as_str()).collect();
    let shown = String::from_utf8([shown, output.stdout].concat()).expect("UTF-8");
    assert_eq!(text, shown.trim_end_matches('\n'));
}

#[test]
fn an_answer_stopped_before_its_first_token_leaves_the_old_trace() {
    let scratch = Scratch::new();
    scratch.write("out.csv", "old");
    // Reading this takes long enough to be interrupted in.
    scratch.write("long.txt", "7".repeat(2000));
    let flags = ["generate", "--raw", "--chunk", "1", "--threads", "1", "--file", "long.txt", "--trace", "out.csv"];
    let child = scratch.command(&flags).spawn().expect("the program starts");
    let temporary = || names_in(&scratch.path("")).iter().any(|name| name.starts_with(".duckpond-trace-"));
    while !temporary() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    common::signal(&child, "INT");
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(output.stdout, b"");
    assert_eq!(std::fs::read_to_string(scratch.path("out.csv")).expect("it is there"), "old");
    assert!(!temporary());
}

#[test]
fn a_reader_that_goes_away_ends_the_answer_without_complaint() {
    let scratch = Scratch::new();
    let mut child = scratch.command(&["generate", "9973是质数吗"]).spawn().expect("the program starts");
    assert!(!first_output(&mut child).is_empty());
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.lines().count() == 1 && stderr.starts_with("Generation stats: "), "{stderr}");
}

#[test]
fn a_full_standard_output_is_a_failure() {
    let scratch = Scratch::new();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut command = scratch.command(&["generate", "你好"]);
    let ran = run(command.stdout(Stdio::from(full)));
    ran.refused(1, "cannot write to standard output: No space left on device (os error 28)");
}

#[test]
fn an_interrupt_stops_the_answer_and_keeps_the_figures() {
    let scratch = Scratch::new();
    let mut child = scratch.command(&["generate", "9973是质数吗"]).spawn().expect("the program starts");
    assert!(!first_output(&mut child).is_empty());
    common::signal(&child, "INT");
    let output = child.wait_with_output().expect("the program ends");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    let lines: Vec<&str> = stderr.lines().collect();
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(lines.len() == 2 && lines[0].starts_with("Generation stats: "), "{lines:?}");
    assert_eq!(lines[1], "stopped: interrupted");
}

#[test]
fn nothing_on_a_pipe_is_coloured_even_when_much_is_logged() {
    let ran = Scratch::new().run(&["generate", "--log", "trace", "--max-tokens", "2", "你好"]);
    ran.succeeded();
    assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{}", ran.stderr);
}

#[test]
fn the_model_is_found_beside_an_installed_program_from_any_folder() {
    let scratch = Scratch::new();
    let program = scratch.path("usr/bin/duckpond");
    std::fs::create_dir_all(program.parent().expect("usr/bin")).expect("below the scratch folder");
    let built = env!("CARGO_BIN_EXE_duckpond");
    std::fs::hard_link(built, &program).or_else(|_| std::fs::copy(built, &program).map(|_| ())).expect("a second name");
    let share = scratch.path("usr/share/duckpond/models");
    std::fs::create_dir_all(&share).expect("below the scratch folder");
    std::os::unix::fs::symlink(duckling(), share.join("duckling")).expect("below the scratch folder");
    let elsewhere = Scratch::new();
    let mut command = elsewhere.command_of(&program, &["generate", "What is 1234 + 567?"]);
    let ran = run(command.env_remove("DUCKPOND_MODEL"));
    ran.succeeded();
    assert_eq!(ran.stdout, golden("What is 1234 + 567?").0 + "\n");
}

#[test]
fn a_prompt_can_begin_with_a_hyphen_after_two() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["generate", "--max-tokens", "1", "--", "-5 + 7"]);
    ran.succeeded();
    let piped = run_with_input(scratch.command(&["generate", "--max-tokens", "1", "-"]), b"-5 + 7");
    assert_eq!(ran.stdout, piped.stdout);
}

/// RFC 4180, without its errors.
fn csv(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut field, mut quoted) = (Vec::new(), Vec::new(), String::new(), false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut field)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut field));
                rows.push(std::mem::take(&mut row));
            }
            c => field.push(c),
        }
    }
    assert!(field.is_empty() && row.is_empty() && !quoted, "the last row is complete");
    rows
}
