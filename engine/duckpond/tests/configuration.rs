//! Where settings come from, seen through `duckpond config`.

mod common;

use common::{Scratch, run};

/// The line of a setting: its value and its origin.
fn setting(text: &str, key: &str) -> (String, String) {
    let line = text.lines().find(|line| line.starts_with(&format!("{key} = "))).expect("every setting has a line");
    let (value, origin) = line.split_once(" # ").expect("every line has an origin");
    (value.trim_end().to_owned(), origin.to_owned())
}

#[test]
fn flags_beat_the_environment_which_beats_the_file_which_beats_defaults() {
    let scratch = Scratch::new();
    scratch.write("duckpond.toml", "ducks = 2\nchunk = 8\ntop_k = 40\nmtp = true\n");
    let mut command = scratch.command(&["config", "--ducks", "5", "--no-mtp"]);
    let ran = run(command.env("DUCKPOND_DUCKS", "3").env("DUCKPOND_CHUNK", "9"));
    ran.succeeded();
    let found = ["ducks", "chunk", "top_k", "threads", "mtp"].map(|key| setting(&ran.stdout, key));
    let expected = [
        ("ducks = 5", "--ducks"),
        ("chunk = 9", "DUCKPOND_CHUNK"),
        ("top_k = 40", "duckpond.toml"),
        ("threads = 0", "default"),
        ("mtp = false", "--no-mtp"),
    ];
    // The negative form of a switch is the same setting.
    let expected = expected.map(|(value, origin)| (value.to_owned(), origin.replace("--no-", "--")));
    assert_eq!(found, expected);
}

#[test]
fn a_named_file_replaces_the_one_in_the_folder() {
    let scratch = Scratch::new();
    scratch.write("duckpond.toml", "ducks = 2");
    scratch.write("pond/other.toml", "chunk = 3\nmodel = \"m\"");
    for ran in [
        scratch.run(&["config", "--config", "pond/other.toml"]),
        run(scratch.command(&["config"]).env("DUCKPOND_CONFIG", "pond/other.toml")),
    ] {
        ran.succeeded();
        assert_eq!(setting(&ran.stdout, "ducks").0, "ducks = 4");
        assert_eq!(setting(&ran.stdout, "chunk"), ("chunk = 3".to_owned(), "pond/other.toml".to_owned()));
    }
    let ran = run(scratch.command(&["config", "--config", "pond/other.toml"]).env_remove("DUCKPOND_MODEL"));
    assert_eq!(setting(&ran.stdout, "model").0, "model = \"pond/m\"");
}

#[test]
fn the_users_own_file_counts_where_there_is_none_in_the_folder() {
    let scratch = Scratch::new();
    scratch.write("xdg/duckpond/config.toml", "ducks = 6");
    let xdg = scratch.path("xdg");
    let ran = run(scratch.command(&["config"]).env("XDG_CONFIG_HOME", &xdg));
    assert_eq!(setting(&ran.stdout, "ducks").0, "ducks = 6");
    scratch.write("duckpond.toml", "chunk = 5");
    let ran = run(scratch.command(&["config"]).env("XDG_CONFIG_HOME", &xdg));
    assert_eq!(setting(&ran.stdout, "ducks").0, "ducks = 4");
}

#[test]
fn files_that_cannot_be_used() {
    let scratch = Scratch::new();
    let ran = scratch.run(&["config", "--config", "nowhere.toml"]);
    ran.refused(2, "cannot read the configuration file nowhere.toml: No such file or directory (os error 2)");
    scratch.write("duckpond.toml", "ducks = 2\nduks = 3");
    let known = "model, pond, ducks, threads, numerics, stage0, max_len, chunk, max_tokens, temperature, top_k, top_p, min_p, \
                 repetition_penalty, seed, stop, mtp, system, think, log";
    scratch.run(&["config"]).refused(2, &format!("duckpond.toml: unknown key duks; known are {known}"));
    scratch.write("duckpond.toml", "ducks = 2\nchunk = \"a");
    let ran = scratch.run(&["config"]);
    assert!(ran.code == Some(2) && ran.stderr.starts_with("duckpond: duckpond.toml:2: "), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1);
}

#[test]
fn the_shown_settings_are_a_configuration_file() {
    let scratch = Scratch::new();
    let arguments = ["config", "--stop", "a\"b", "--stop", "\n", "--seed", "7", "--system", "鸭\\"];
    let first = scratch.run(&arguments);
    first.succeeded();
    scratch.write("duckpond.toml", &first.stdout);
    let second = scratch.run(&["config"]);
    second.succeeded();
    let values = |text: &str| {
        text.lines().map(|line| line.rsplit_once(" # ").expect("an origin").0.trim_end().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values(&second.stdout), values(&first.stdout));
}

#[test]
fn a_variable_that_means_nothing_is_warned_of() {
    let scratch = Scratch::new();
    let ran = run(scratch.command(&["config"]).env("DUCKPOND_DUKS", "3"));
    let lines = ran.succeeded();
    assert!(
        lines.len() == 1 && lines[0].ends_with("the environment variable DUCKPOND_DUKS means nothing to duckpond"),
        "{lines:?}"
    );
    let quiet = run(scratch.command(&["config", "--log", "error"]).env("DUCKPOND_DUKS", "3"));
    assert_eq!(quiet.stderr, "");
}
