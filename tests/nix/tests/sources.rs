//! Every .nix file of the repository, as a text.

use std::fs;
use std::path::Path;

use nix_tests::{formatted, nix_files, repository, unused_names};

/// What `check` says of each file, with the file's name.
fn complaints(check: impl Fn(&Path, &str) -> Vec<String>) -> Vec<String> {
    let root = repository();
    let files = nix_files(&root).expect("readable");
    assert!(files.contains(&root.join("nixos-modules/pond.nix")), "{files:?}");
    let complain = |file: &Path| {
        let text = fs::read_to_string(file).expect("readable");
        let short = file.strip_prefix(&root).expect("below it").display().to_string();
        check(file, &text).into_iter().map(|what| format!("{short}: {what}")).collect::<Vec<_>>()
    };
    files.iter().flat_map(|file| complain(file)).collect()
}

#[test]
fn every_file_is_nix_in_the_projects_format() {
    let wrong = complaints(|path, text| match formatted(path, text) {
        Err(error) => vec![error],
        Ok(new) if new != text => vec!["run `cargo run -p nix-tests --bin format-nix`".into()],
        Ok(_) => Vec::new(),
    });
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_name_is_bound_and_never_mentioned() {
    let unused = complaints(|_, text| {
        unused_names(text).into_iter().map(|(line, name)| format!("line {line}: nothing uses {name}")).collect()
    });
    assert!(unused.is_empty(), "\n{}", unused.join("\n"));
}
