//! Runs the real program in a scratch folder with a known environment.

#![allow(dead_code, reason = "each test file uses its own part")]

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

/// Where Duckling lies in the repository.
pub fn duckling() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/duckling").canonicalize().expect("it ships with the code")
}

/// What Duckling answers to the golden prompt of that name, without the end marker, and how many tokens prompt and answer have.
pub fn golden(name: &str) -> (String, usize, usize) {
    let cases = golden::duckling_greedy();
    let case = cases.iter().find(|case| case.name == name).expect("a golden prompt");
    let text = case.greedy_text.strip_suffix("<｜end▁of▁sentence｜>").expect("a complete answer");
    (text.to_owned(), case.prompt_ids.len(), case.greedy_ids.len())
}

/// A finished run.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    fn of(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).expect("the program writes UTF-8");
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Asserts that the run was refused with exactly this line and without a word on standard output.
    #[track_caller]
    pub fn refused(&self, code: i32, line: &str) {
        let expected = (Some(code), String::new(), format!("duckpond: {line}\n"));
        assert_eq!((self.code, self.stdout.clone(), self.stderr.clone()), expected);
    }

    /// Asserts success and returns the lines of standard error.
    #[track_caller]
    pub fn succeeded(&self) -> Vec<&str> {
        assert_eq!(self.code, Some(0), "stderr: {}", self.stderr);
        self.stderr.lines().collect()
    }
}

/// A scratch folder to run in.
pub struct Scratch {
    folder: TempDir,
}

impl Scratch {
    pub fn new() -> Scratch {
        Scratch { folder: tempfile::tempdir().expect("a folder for a test") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().canonicalize().expect("it exists").join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("it has one")).expect("below the scratch folder");
        std::fs::write(&path, bytes).expect("below the scratch folder");
        path
    }

    /// A command with nothing in its environment but the model.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(Path::new(env!("CARGO_BIN_EXE_duckpond")), arguments)
    }

    pub fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.folder.path()).env_clear();
        command.env("HOME", self.folder.path()).env("DUCKPOND_MODEL", duckling());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().expect("the program starts"))
    }

    pub fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ran {
        run_with_input(self.command(arguments), input)
    }

    /// Duckling, with one file replaced. The others are links.
    pub fn duckling_with(&self, file: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let folder = self.path("model");
        std::fs::create_dir_all(&folder).expect("below the scratch folder");
        for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            if name != file {
                symlink(duckling().join(name), folder.join(name)).expect("below the scratch folder");
            }
        }
        self.write(&format!("model/{file}"), bytes);
        folder
    }
}

pub fn run(command: &mut Command) -> Ran {
    Ran::of(command.output().expect("the program starts"))
}

pub fn run_with_input(mut command: Command, input: &[u8]) -> Ran {
    let mut child = command.stdin(Stdio::piped()).spawn().expect("the program starts");
    // A program that refuses its arguments does not read.
    let _ = child.stdin.take().expect("it is piped").write_all(input);
    Ran::of(child.wait_with_output().expect("the program ends"))
}

/// Waits until the child has written something to standard output, and returns it.
pub fn first_output(child: &mut Child) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    let read = child.stdout.as_mut().expect("it is piped").read(&mut bytes).expect("a pipe can be read");
    bytes.truncate(read);
    bytes
}

/// Whether `line` is the line of figures for so many tokens.
pub fn is_stats(line: &str, input: usize, output: usize) -> bool {
    let Some(rest) = line.strip_prefix("Generation stats: ") else { return false };
    let fields: Vec<(&str, &str)> = rest.split(", ").filter_map(|field| field.split_once(' ')).collect();
    let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
    let figure = |value: &str, unit: &str| {
        let number = value.strip_suffix(unit).unwrap_or_default();
        number.split_once('.').is_some_and(|(_, decimals)| decimals.len() == 3) && number.parse::<f64>().is_ok()
    };
    names == ["time", "input_len", "output_len", "ttft", "tpot", "prefill", "decode"]
        && [0, 3, 4].iter().all(|&i| figure(fields[i].1, "s"))
        && [5, 6].iter().all(|&i| figure(fields[i].1, " tok/s"))
        && fields[1].1 == input.to_string()
        && fields[2].1 == output.to_string()
}

/// Sends a signal, such as `INT`; nothing happens if the child has ended by then.
pub fn signal(child: &Child, name: &str) {
    let kill = format!("kill -{name} {} 2>/dev/null; true", child.id());
    assert!(Command::new("/bin/sh").args(["-c", &kill]).status().expect("sh starts").success());
}

/// The names in a folder, sorted.
pub fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("it exists");
    let names = entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}
