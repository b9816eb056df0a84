use std::path::PathBuf;

use super::*;

fn flags(values: &[(&'static str, &str)]) -> Layer {
    let mut layer = Layer::flags();
    for &(key, value) in values {
        layer.put(key, Some(layer::value_of(value.parse().expect("the test writes TOML"))));
    }
    layer
}

/// Settings with this file's text, environment and flags.
fn merged(file: Option<&str>, environment: &[(&str, &str)], flags: Layer) -> Result<Merged, SettingsError> {
    let folder = tempfile::tempdir().expect("a folder for a test");
    let path = folder.path().join("pond.toml");
    let stated = file.map(|text| {
        std::fs::write(&path, text).expect("the folder is new");
        path.as_path()
    });
    Merged::read(stated, &Environment::of(environment), flags)
}

fn refusal(file: Option<&str>, environment: &[(&str, &str)], flags: Layer) -> String {
    let resolved = merged(file, environment, flags).and_then(|merged| merged.resolve());
    let line = resolved.expect_err("not allowed").to_string();
    // The temporary folder's name is another one each time.
    match line.split_once("pond.toml") {
        Some((before, after)) if before.contains("(from ") => {
            let (head, _) = before.split_once("(from ").expect("just seen");
            format!("{head}(from pond.toml{after}")
        }
        Some((_, after)) => format!("pond.toml{after}"),
        None => line,
    }
}

#[test]
fn later_sources_win_key_by_key() {
    let file = "ducks = 2\nchunk = 8\ntemperature = 0.5";
    let environment = [("DUCKPOND_DUCKS", "3"), ("DUCKPOND_CHUNK", "9")];
    let merged = merged(Some(file), &environment, flags(&[("ducks", "5")])).expect("all known");
    let settings = merged.resolve().expect("all in range");
    assert_eq!((settings.ducks, settings.chunk, settings.temperature, settings.threads), (5, 9, 0.5, 0));
    assert_eq!(merged.origin("ducks"), Some(Origin::Flag("--ducks".into())));
    assert_eq!(merged.origin("chunk"), Some(Origin::Environment("DUCKPOND_CHUNK".into())));
    assert!(matches!(merged.origin("temperature"), Some(Origin::File(path)) if path.ends_with("pond.toml")));
    assert_eq!(merged.origin("threads"), Some(Origin::Default));
    assert_eq!(merged.origin("seed"), None);
}

#[test]
fn a_value_out_of_range_is_told_with_key_value_range_and_source() {
    let whole = "expected a whole number from 1 to the number of units of the model (65535 at most)";
    assert_eq!(refusal(None, &[], flags(&[("ducks", "0")])), format!("ducks is 0 (from --ducks), {whole}"));
    assert_eq!(
        refusal(None, &[("DUCKPOND_DUCKS", "many")], Layer::flags()),
        format!("ducks is \"many\" (from DUCKPOND_DUCKS), {whole}")
    );
    assert_eq!(
        refusal(Some("temperature = -0.5"), &[], Layer::flags()),
        "temperature is -0.5 (from pond.toml), expected 0, or a number from 1e-30 to 100"
    );
}

#[test]
fn every_key_has_a_range() {
    let bad = [
        ("model", "\"\""),
        ("pond", "\"\""),
        ("ducks", "65536"),
        ("threads", "-1"),
        ("numerics", "\"fp4\""),
        ("stage0", "\"tpu\""),
        ("max_len", "1.5"),
        ("chunk", "0"),
        ("max_tokens", "true"),
        ("temperature", "nan"),
        ("top_k", "-1"),
        ("top_p", "0"),
        ("min_p", "1.0"),
        ("repetition_penalty", "0"),
        ("seed", "-1"),
        ("stop", "[\"\"]"),
        ("mtp", "1"),
        ("system", "1"),
        ("think", "\"yes\""),
        ("log", "\"flock=loud\""),
    ];
    assert_eq!(bad.map(|(key, _)| key).to_vec(), KEYS.iter().map(|key| key.name).collect::<Vec<_>>());
    for (key, value) in bad {
        let line = refusal(Some(&format!("{key} = {value}")), &[], Layer::flags());
        assert_eq!(line.split_once(" is ").map(|(name, _)| name), Some(key), "{line}");
        assert!(line.ends_with(&format!("expected {}", Key::named(key).allowed)), "{line}");
    }
}

#[test]
fn numbers_that_would_become_zero_are_refused() {
    for (key, value) in [("temperature", "1e-300"), ("top_p", "1e-50"), ("min_p", "0.99999999999")] {
        let line = refusal(Some(&format!("{key} = {value}")), &[], Layer::flags());
        assert!(line.starts_with(&format!("{key} is {value} ")), "{line}");
    }
    assert!(merged(Some("temperature = 1e-30\ntop_p = 1e-30"), &[], Layer::flags()).and_then(|m| m.resolve()).is_ok());
}

#[test]
fn a_configuration_file_that_is_none_is_refused_unread() {
    let line =
        Merged::read(Some(Path::new("/dev/zero")), &Environment::default(), Layer::flags()).expect_err("endless");
    assert_eq!(
        crate::error::Error::from(line).line(),
        "cannot read the configuration file /dev/zero: it is no regular file"
    );
    let line = refusal(Some(&"#".repeat((1 << 20) + 1)), &[], Layer::flags());
    assert_eq!(line, "pond.toml");
}

#[test]
fn an_unknown_key_is_refused_by_name() {
    let line = refusal(Some("ducks = 2\nduks = 3"), &[], Layer::flags());
    assert!(line.starts_with("pond.toml: unknown key duks; known are model, pond, ducks, "), "{line}");
}

#[test]
fn a_mistake_in_the_file_is_told_with_its_line() {
    let line = refusal(Some("ducks = 2\nchunk = = 3"), &[], Layer::flags());
    assert!(line.starts_with("pond.toml:2: "), "{line}");
}

#[test]
fn a_missing_file_is_refused_only_if_it_was_named() {
    let nowhere = Path::new("/nowhere/pond.toml");
    let stated = Merged::read(Some(nowhere), &Environment::default(), Layer::flags());
    assert_eq!(stated.expect_err("it was named").to_string(), "cannot read the configuration file /nowhere/pond.toml");
    let variable = Environment::of(&[("DUCKPOND_CONFIG", "/nowhere/pond.toml")]);
    assert!(Merged::read(None, &variable, Layer::flags()).is_err());
    let home = Environment::of(&[("HOME", "/nowhere")]);
    assert!(Merged::read(None, &home, Layer::flags()).is_ok());
}

#[test]
fn the_users_file_is_found_in_the_folder_for_configuration() {
    let home = tempfile::tempdir().expect("a folder for a test");
    let folder = home.path().join(".config/duckpond");
    std::fs::create_dir_all(&folder).expect("the folder is new");
    std::fs::write(folder.join("config.toml"), "ducks = 7").expect("the folder is new");
    let environment = Environment::of(&[("HOME", home.path().to_str().expect("temporary names are ASCII"))]);
    let settings = Merged::read(None, &environment, Layer::flags()).and_then(|merged| merged.resolve());
    assert_eq!(settings.expect("valid").ducks, 7);
}

#[test]
fn a_model_named_in_a_file_is_relative_to_that_file() {
    let folder = tempfile::tempdir().expect("a folder for a test");
    let path = folder.path().join("pond.toml");
    std::fs::write(&path, "model = \"models/mine\"").expect("the folder is new");
    let model = |environment: &Environment| {
        let merged = Merged::read(Some(&path), environment, Layer::flags()).expect("valid");
        merged.resolve().expect("valid").model
    };
    assert_eq!(model(&Environment::default()), Some(folder.path().join("models/mine")));
    assert_eq!(model(&Environment::of(&[("DUCKPOND_MODEL", "mine")])), Some(PathBuf::from("mine")));
}

#[test]
fn texts_in_the_environment_stay_texts() {
    let environment =
        [("DUCKPOND_SYSTEM", "42"), ("DUCKPOND_STOP", "7"), ("DUCKPOND_MODEL", "true"), ("DUCKPOND_SEED", "")];
    let settings = merged(None, &environment, Layer::flags()).and_then(|merged| merged.resolve()).expect("valid");
    assert_eq!(settings.system.as_deref(), Some("42"));
    assert_eq!(settings.stop, ["7"]);
    assert_eq!(settings.model, Some(PathBuf::from("true")));
    assert_eq!(settings.seed, None);
    let listed = merged(None, &[("DUCKPOND_STOP", "[\"a\", \"b\"]")], Layer::flags()).and_then(|m| m.resolve());
    assert_eq!(listed.expect("valid").stop, ["a", "b"]);
}

#[test]
fn variables_that_mean_nothing_are_named() {
    let environment = Environment::of(&[("DUCKPOND_DUKS", "1"), ("DUCKPOND_DUCKS", "1"), ("HOME", "/")]);
    assert_eq!(environment.unknown_variables(), ["DUCKPOND_DUKS"]);
}

#[test]
fn the_merged_settings_are_shown_as_a_file_that_says_the_same() {
    let environment = [("DUCKPOND_STOP", "a\"\n\u{1b}b"), ("DUCKPOND_SYSTEM", "C:\\x 鸭")];
    let before = merged(None, &environment, flags(&[("ducks", "5"), ("temperature", "0.25")])).expect("valid");
    let text = show(&before);
    assert!(text.contains("\nducks = 5"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("ducks = 5 ") && line.ends_with(" # --ducks")), "{text}");
    assert!(text.lines().any(|line| line.ends_with("# not set: another one each time")), "{text}");
    assert_eq!(text.lines().count(), KEYS.len(), "one line for each key: {text}");
    let after = merged(Some(&text), &[], Layer::flags()).expect("it is a configuration file");
    assert_eq!(after.resolve().expect("valid"), before.resolve().expect("valid"));
}
