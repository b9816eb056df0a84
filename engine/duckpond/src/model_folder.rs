//! Which checkpoint folder to use, and finding the one that ships with the program.

use std::path::{Path, PathBuf};

/// Where Duckling lies below some folder: in the repository, and where the program was installed.
const PLACES: [&str; 2] = ["models/duckling", "share/duckpond/models/duckling"];

/// Duckling is nowhere.
#[derive(Debug, thiserror::Error)]
#[error(
    "the default model Duckling is not beside the program ({}) and not above the current folder ({}); \
     name a checkpoint folder with --model or DUCKPOND_MODEL",
    program.display(), current.display()
)]
pub struct NotFound {
    program: PathBuf,
    current: PathBuf,
}

/// The folder stated, or Duckling: looked for in every folder above the program, then in every folder above the current one.
///
/// # Errors
/// [`NotFound`]. That a stated folder exists is not checked here: opening it says more.
pub fn find(stated: Option<&Path>) -> Result<PathBuf, NotFound> {
    if let Some(stated) = stated {
        return Ok(stated.to_owned());
    }
    // Without either, nothing is found there.
    let program = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let current = std::env::current_dir().unwrap_or_default();
    find_duckling(&program, &current).ok_or(NotFound { program, current })
}

fn find_duckling(program: &Path, current: &Path) -> Option<PathBuf> {
    let above_program = program.ancestors().skip(1);
    let folders = above_program.chain(current.ancestors()).filter(|folder| folder.is_absolute());
    folders.flat_map(|folder| PLACES.map(|place| folder.join(place))).find(|path| path.join("config.json").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_model(place: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().expect("a folder for a test");
        let model = root.path().join(place);
        std::fs::create_dir_all(&model).expect("below the folder for a test");
        std::fs::write(model.join("config.json"), "{}").expect("below the folder for a test");
        (root, model)
    }

    #[test]
    fn duckling_is_found_from_an_installed_program() {
        let (root, model) = with_model("share/duckpond/models/duckling");
        let program = root.path().join("bin/duckpond");
        assert_eq!(find_duckling(&program, Path::new("/")), Some(model));
    }

    #[test]
    fn duckling_is_found_from_a_build_folder_deep_in_the_repository() {
        let (root, model) = with_model("models/duckling");
        let program = root.path().join("target/release/deps/duckpond");
        assert_eq!(find_duckling(&program, Path::new("/")), Some(model));
    }

    #[test]
    fn duckling_is_found_above_the_current_folder_if_the_program_is_elsewhere() {
        let (root, model) = with_model("models/duckling");
        let current = root.path().join("engine/host");
        assert_eq!(find_duckling(Path::new("/nowhere/duckpond"), &current), Some(model));
    }

    #[test]
    fn the_model_beside_the_program_comes_first() {
        let (installed, model) = with_model("share/duckpond/models/duckling");
        let (repository, _) = with_model("models/duckling");
        let program = installed.path().join("bin/duckpond");
        assert_eq!(find_duckling(&program, repository.path()), Some(model));
    }

    #[test]
    fn a_folder_without_configuration_is_no_model() {
        let (root, model) = with_model("models/duckling");
        std::fs::remove_file(model.join("config.json")).expect("it is there");
        assert_eq!(find_duckling(&root.path().join("duckpond"), root.path()), None);
    }
}
