//! The same descriptions for the engine and for `nixos-modules/pond.nix`: both must take them, or name the same field.

use nix_tests::{cases, engine_verdict, evaluate, nix_or_missing};
use serde_json::{Value, json};

/// What `pond.nix` says of each description: the field and the line that `make` ends with, or null.
const VERDICTS: &str = r#"
    let pond = import (repository + "/nixos-modules/pond.nix");
    in map (description: let wrong = pond.check description; in
      if wrong == null then null else wrong // { taken = (builtins.tryEval (pond.make description)).success; }) input"#;

fn nix_verdicts(descriptions: Vec<&Value>) -> Vec<Value> {
    let verdicts = evaluate(VERDICTS, &json!(descriptions)).unwrap_or_else(|error| panic!("{error}"));
    verdicts.as_array().expect("a list").clone()
}

#[test]
fn the_engine_takes_what_is_good_and_refuses_what_is_bad_by_its_field() {
    let cases = cases();
    let bad = cases.iter().filter(|case| case.field.is_some()).count();
    assert!(bad >= 30 && cases.len() - bad >= 6, "{bad} bad ones of {}", cases.len());
    for case in cases {
        let verdict = engine_verdict(&case.description);
        assert_eq!(verdict.as_ref().map(|(field, _)| field), case.field.as_ref(), "{}: {verdict:?}", case.file);
    }
}

#[test]
fn nix_takes_what_is_good_and_refuses_what_is_bad_by_its_field() {
    if !nix_or_missing("Verdicts of pond.nix are") {
        return;
    }
    let cases = cases();
    let verdicts = nix_verdicts(cases.iter().map(|case| &case.description).collect());
    assert_eq!(verdicts.len(), cases.len());
    for (case, verdict) in cases.iter().zip(verdicts) {
        assert_eq!(verdict["field"].as_str(), case.field.as_deref(), "{}: {verdict}", case.file);
        if case.field.is_some() {
            let problem = verdict["problem"].as_str().expect("a text");
            assert!(!problem.is_empty() && !problem.contains('\n'), "{}: {problem:?}", case.file);
            assert_eq!(verdict["taken"], false, "{}", case.file);
        }
    }
}

#[test]
fn nix_ends_with_one_line_that_names_field_and_fault() {
    if !nix_or_missing("The message of pond.nix is") {
        return;
    }
    let make = |description: Value| {
        evaluate(r#"(import (repository + "/nixos-modules/pond.nix")).make input"#, &description)
            .expect_err("it is bad")
    };
    let port = |name: &str, lcore: u16| json!({ "name": name, "link": format!("eth:{name}"), "lcore": lcore });
    let said =
        make(json!({ "name": "a", "ports": [port("p", 2), port("q", 2)], "ducks": [{ "name": "d", "port": "p" }] }));
    let line = "error: ports[1].lcore: 2 is already ports[0].lcore; each needs one of its own";
    assert!(said.lines().any(|said| said.trim() == line), "{said}");
    let said = make(json!({ "name": "a", "ports": [port("p", 2)], "ducks": [{ "name": "d\nd", "port": "p" }] }));
    let line = r#"error: ducks[0].name: "d\nd" is not a name: 1 to 16 letters, digits, hyphens, underscores or dots"#;
    assert!(said.lines().any(|said| said.trim() == line), "{said}");
    let path = r#"(import (repository + "/nixos-modules/pond.nix")).check (input // { key = repository; })"#;
    let verdict =
        evaluate(path, &json!({ "name": "a", "ports": [port("p", 2)] })).unwrap_or_else(|error| panic!("{error}"));
    let problem = verdict["problem"].as_str().expect("a secret must not get into the store");
    assert!(
        verdict["field"] == "key" && problem.starts_with("is a path, which Nix would copy into its store"),
        "{problem}"
    );
    let said = make(json!([]));
    assert!(said.contains("error: the description: is a list, expected a set with the fields name, model, "), "{said}");
}

#[test]
fn what_nix_makes_has_no_nulls_and_is_what_the_engine_reads() {
    if !nix_or_missing("What pond.nix makes is") {
        return;
    }
    let good: Vec<_> = cases().into_iter().filter(|case| case.field.is_none()).collect();
    let descriptions: Vec<_> = good.iter().map(|case| &case.description).collect();
    let texts =
        r#"let pond = import (repository + "/nixos-modules/pond.nix"); in map (d: pond.pretty (pond.make d)) input"#;
    let texts = evaluate(texts, &json!(descriptions)).unwrap_or_else(|error| panic!("{error}"));
    for (case, text) in good.iter().zip(texts.as_array().expect("a list")) {
        let text = text.as_str().expect("a text");
        assert!(!text.contains(": null"), "{text}");
        let made = pond::Pond::from_json(text).unwrap_or_else(|error| panic!("{}: {error}", case.file));
        let read = pond::Pond::from_json(&case.description.to_string()).expect("good");
        assert_eq!(made, read, "{}", case.file);
        // Serde's order of fields is the order of the types, which is that of the documentation.
        let value: Value = serde_json::from_str(text).expect("JSON");
        let written: Value = serde_json::to_value(&made).expect("is written");
        if value == written {
            assert_eq!(
                text,
                format!("{}\n", serde_json::to_string_pretty(&made).expect("is written")),
                "{}",
                case.file
            );
        }
    }
}

#[test]
fn nix_counts_ducks_and_units() {
    if !nix_or_missing("Units in pond.nix are") {
        return;
    }
    let expression = r#"map (units: (import (repository + "/nixos-modules/pond.nix")).checkModel units input) [ 2 1 ]"#;
    let pond = json!({ "ducks": [{ "name": "a" }, { "name": "b" }] });
    let verdicts = evaluate(expression, &pond).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((&verdicts[0], &verdicts[1]["field"]), (&Value::Null, &json!("ducks")));
    let problem = verdicts[1]["problem"].as_str().expect("a text");
    assert!(problem.starts_with("there are 2 ducks, but a layer of the model has 1 units"), "{problem}");
}
