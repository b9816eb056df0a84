//! Nix as a program.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::repository;

/// An expression's value, with `repository` and `input`, a value of the caller's, in scope. Needs no store, no network and no configuration
/// of this machine's.
///
/// # Errors
/// Nix is missing; or what it says.
pub fn evaluate(expression: &str, input: &Value) -> Result<Value, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = folder.path().join("input.json");
    fs::write(&file, input.to_string()).map_err(|error| error.to_string())?;
    let quoted = |path: &Path| serde_json::to_string(&path.display().to_string()).map_err(|error| error.to_string());
    let input = format!("input = builtins.fromJSON (builtins.readFile {});", quoted(&file)?);
    let expression = format!("let repository = /. + {}; {input} in {expression}", quoted(&repository())?);
    let ran = Command::new("nix-instantiate")
        .args(["--eval", "--strict", "--json", "--readonly-mode", "--expr", &expression])
        .env("NIX_CONF_DIR", folder.path())
        .env("HOME", folder.path())
        // A store that holds nothing and is nowhere: these expressions need none.
        .env("NIX_REMOTE", "dummy://")
        .output()
        .map_err(|error| format!("nix-instantiate does not start: {error}"))?;
    if !ran.status.success() {
        return Err(String::from_utf8_lossy(&ran.stderr).into_owned());
    }
    serde_json::from_slice(&ran.stdout).map_err(|error| error.to_string())
}

/// Whether there is a Nix for `subject` to be tested with. If not, it is said; with `DUCKPOND_REQUIRE_NIX=1` the test fails.
///
/// # Panics
/// As said.
pub fn nix_or_missing(subject: &str) -> bool {
    let started = Command::new("nix-instantiate").arg("--version").output();
    let Err(error) =
        started.and_then(|ran| if ran.status.success() { Ok(()) } else { Err(io::Error::other("it failed")) })
    else {
        return true;
    };
    let what = format!("nix-instantiate --version: {error}; install Nix 2.8 or newer (Debian: nix-bin)");
    // Not by `println!`, whose lines a passing test keeps to itself.
    let _ = writeln!(io::stderr(), "{subject} not tested: {what}");
    let required = std::env::var("DUCKPOND_REQUIRE_NIX").is_ok_and(|value| value == "1");
    assert!(!required, "DUCKPOND_REQUIRE_NIX is set, and {what}");
    false
}
