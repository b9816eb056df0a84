//! `duckpond provenance`: what runs here, and where it came from. The engine logs the same when it opens a pond, and a server tells it.
//!
//! On NixOS a store path says how a program was built, down to the compiler; a system's generation, what it was rolled out with. Elsewhere there
//! are the version and the program's place. Left out: whether any of it is up to date.

use std::fmt::Write;
use std::fs;
use std::path::{Component, Path, PathBuf};

use pond::signature::Program;
use pond::{KeyError, NarHash, Pond};
use serde::Serialize;
use wire::key::PublicKey;

use crate::cli::ProvenanceArgs;
use crate::error::{Error, chain, one_line};
use crate::output;

/// This program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Where Nix keeps what it built.
const STORE: &str = "/nix/store";
/// The generations of the system.
const PROFILES: &str = "/nix/var/nix/profiles";

/// What runs here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Provenance {
    version: &'static str,
    /// The file that runs; empty where the kernel does not say it.
    program: String,
    /// What of Nix's store it is in.
    store_path: Option<String>,
    system: Option<System>,
    kernels: Option<Kernels>,
}

/// The system that is on, where NixOS made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct System {
    /// In the store.
    path: String,
    /// Its number, the highest if it has several; none if it was tried out only.
    generation: Option<u64>,
}

/// The program that ducks are sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Kernels {
    path: String,
    /// Of the file, if it can be read.
    nar_hash: Option<NarHash>,
    /// By the pond's description.
    described: Option<NarHash>,
    /// `good`, or why not.
    signature: String,
}

/// Runs the command.
///
/// # Errors
/// A faulty description.
pub fn run(args: &ProvenanceArgs, pond: Option<&Path>) -> Result<(), Error> {
    let pond = pond.map(Pond::load).transpose()?;
    let found = Provenance::of(Path::new("/"), pond.as_ref());
    let text = match args.json {
        true => serde_json::to_string_pretty(&found).expect("texts and numbers are JSON") + "\n",
        false => found.text(),
    };
    output::print(&text).map_err(Error::Output)
}

impl Provenance {
    /// Of this process, on the machine whose files are below `root`.
    pub fn of(root: &Path, pond: Option<&Pond>) -> Provenance {
        let program = fs::read_link(root.join("proc/self/exe")).unwrap_or_default();
        Provenance {
            version: VERSION,
            store_path: store_path(&program).map(|path| shown(&path)),
            program: shown(&program),
            system: System::of(root),
            kernels: pond.and_then(Kernels::of),
        }
    }

    /// Has it in the log.
    pub fn log(&self) {
        tracing::info!("provenance: {}", self.line());
    }

    /// What it is called in the API and in metrics.
    pub fn build(&self) -> server::pond::Build {
        server::pond::Build {
            version: self.version.to_owned(),
            program: self.place().to_owned(),
            system: self.system.as_ref().map(|system| system.path.clone()).unwrap_or_default(),
            generation: self.system.as_ref().and_then(|system| system.generation),
            kernels_hash: self
                .kernels
                .as_ref()
                .and_then(|k| k.nar_hash)
                .map(|hash| hash.to_string())
                .unwrap_or_default(),
        }
    }

    fn line(&self) -> String {
        let mut line = format!("duckpond {}, {}; {}", self.version, self.place(), self.system_text());
        if let Some(kernels) = &self.kernels {
            write!(line, "; kernels {}, signature {}", kernels.hash_text(), kernels.signature).expect("to a string");
        }
        one_line(&line)
    }

    fn place(&self) -> &str {
        self.store_path.as_ref().unwrap_or(&self.program)
    }

    fn system_text(&self) -> String {
        match &self.system {
            None => "not NixOS".to_owned(),
            Some(System { path, generation: Some(generation) }) => format!("generation {generation}, {path}"),
            Some(System { path, generation: None }) => format!("no generation, {path}"),
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| writeln!(text, "{name:<14}{}", one_line(value)).expect("to a string");
        line("version", self.version);
        line("program", self.place());
        line("system", &self.system_text());
        if let Some(kernels) = &self.kernels {
            line("kernels", &kernels.path);
            line("  nar hash", &kernels.hash_text());
            line("  signature", &kernels.signature);
        }
        text
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// `/nix/store/HASH-NAME` of a file in it.
fn store_path(file: &Path) -> Option<PathBuf> {
    let Component::Normal(name) = file.strip_prefix(STORE).ok()?.components().next()? else { return None };
    Some(Path::new(STORE).join(name))
}

impl System {
    fn of(root: &Path) -> Option<System> {
        let path = fs::read_link(root.join("run/current-system")).ok()?;
        let profiles = root.join(PROFILES.trim_start_matches('/'));
        let number = |name: &str| -> Option<u64> { name.strip_prefix("system-")?.strip_suffix("-link")?.parse().ok() };
        let entries = fs::read_dir(&profiles).into_iter().flatten().flatten();
        let same = entries.filter(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == path));
        let generation = same.filter_map(|entry| number(entry.file_name().to_str()?)).max();
        Some(System { path: shown(&path), generation })
    }
}

impl Kernels {
    fn of(pond: &Pond) -> Option<Kernels> {
        let path = pond.kernels_file()?;
        let program = Program::read(&path);
        let nar_hash = program.as_ref().ok().map(Program::hash);
        // A key that cannot be read here may be readable where the engine runs.
        let key = pond.public_key.or_else(|| pond.secret_key().ok().flatten().map(|key| key.public()));
        let signature = signature(program, key);
        Some(Kernels { path: shown(&path), nar_hash, described: pond.kernels_hash, signature })
    }

    fn hash_text(&self) -> String {
        match (self.nar_hash, self.described) {
            (None, _) => "unknown".to_owned(),
            (Some(found), None) => format!("{found} (the description says nothing of it)"),
            (Some(found), Some(described)) if found == described => format!("{found} (as described)"),
            (Some(found), Some(described)) => format!("{found} (described: {described})"),
        }
    }
}

fn signature(program: Result<Program, KeyError>, key: Option<PublicKey>) -> String {
    let Some(key) = key else { return "not checked: no key of the pond can be read here".to_owned() };
    match program.and_then(|program| program.signed_by(&key)) {
        Ok(_) => "good".to_owned(),
        Err(error) => chain(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A machine's links.
    fn machine(links: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a folder for a test");
        for (path, target) in links {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("below the folder");
            symlink(target, path).expect("below the folder");
        }
        root
    }

    const SYSTEM: &str = "/nix/store/bbbb-nixos-system-pigeon-26.05";

    #[test]
    fn on_nixos_store_path_and_generation_are_told() {
        let root = machine(&[
            ("proc/self/exe", "/nix/store/aaaa-duckpond-0.1.0/bin/duckpond"),
            ("run/current-system", SYSTEM),
            ("nix/var/nix/profiles/system", "system-43-link"),
            ("nix/var/nix/profiles/system-9-link", SYSTEM),
            ("nix/var/nix/profiles/system-42-link", SYSTEM),
            ("nix/var/nix/profiles/system-43-link", "/nix/store/cccc-nixos-system-pigeon-26.05"),
            ("nix/var/nix/profiles/per-user-99-link", SYSTEM),
        ]);
        let found = Provenance::of(root.path(), None);
        let line = format!("duckpond {VERSION}, /nix/store/aaaa-duckpond-0.1.0; generation 42, {SYSTEM}");
        assert_eq!(found.line(), line);
        let build = found.build();
        assert_eq!((&*build.program, &*build.system), ("/nix/store/aaaa-duckpond-0.1.0", SYSTEM));
        assert_eq!((build.generation, &*build.kernels_hash), (Some(42), ""));
    }

    #[test]
    fn a_system_that_was_only_tried_out_has_no_generation() {
        let root = machine(&[("run/current-system", SYSTEM), ("nix/var/nix/profiles/system-1-link", "/nix/store/x")]);
        assert_eq!(Provenance::of(root.path(), None).system_text(), format!("no generation, {SYSTEM}"));
    }

    #[test]
    fn elsewhere_the_programs_own_place_is_told() {
        let root = machine(&[("proc/self/exe", "/usr/bin/duckpond")]);
        let found = Provenance::of(root.path(), None);
        assert_eq!(
            found.text(),
            format!("version       {VERSION}\nprogram       /usr/bin/duckpond\nsystem        not NixOS\n")
        );
        assert_eq!(store_path(Path::new("/nix/store")), None);
        assert_eq!(store_path(Path::new("/nix/storehouse/x")), None);
    }
}
