//! Rewrites .nix files in the project's format and says which it changed: all of the repository's, or those given (files, or folders).

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use nix_tests::{formatted, nix_files, repository};

fn main() -> Result<(), Box<dyn Error>> {
    let mut places: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    if places.is_empty() {
        places.push(repository());
    }
    for place in places {
        let files = if place.is_dir() { nix_files(&place)? } else { vec![place] };
        for file in files {
            let text = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let new = formatted(&file, &text).map_err(|error| format!("{}: {error}", file.display()))?;
            if new != text {
                fs::write(&file, new)?;
                println!("{}", file.display());
            }
        }
    }
    Ok(())
}
