//! The firmware of this checkout: built when a test first wants it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use wire::key::PublicKey;

/// The programs, as files.
#[derive(Clone, Debug)]
pub struct Firmware {
    folder: PathBuf,
}

impl Firmware {
    /// The supervisor.
    pub fn nest(&self) -> PathBuf {
        self.folder.join("nest-elf")
    }

    /// The kernels.
    pub fn kernels(&self) -> Vec<u8> {
        self.program("fp9_kernels")
    }

    /// A program of one fault, see `programs/`.
    pub fn fault(&self, name: &str) -> Vec<u8> {
        self.program(&format!("fault_{name}"))
    }

    fn program(&self, name: &str) -> Vec<u8> {
        let path = self.folder.join(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

/// What a duck of that name is told when it boots.
pub fn command_line(name: &str, key: &PublicKey) -> String {
    format!("name={name} key={}", pond::hex::encode(&key.0))
}

/// Builds it, in the profile `fw`.
///
/// # Panics
/// If it does not build.
pub fn firmware() -> &'static Firmware {
    static FIRMWARE: OnceLock<Firmware> = OnceLock::new();
    FIRMWARE.get_or_init(|| {
        let test = std::env::current_exe().expect("a running program has a path");
        let target = test.ancestors().nth(3).expect("a test lies in target/PROFILE/deps");
        build(Path::new(env!("CARGO_MANIFEST_DIR")), target)
    })
}

/// Builds the firmware of the workspace that `folder` lies in.
///
/// # Panics
/// If it does not build.
pub fn build(folder: &Path, target: &Path) -> Firmware {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--profile", "fw"]);
    build.args(["nest", "fp9_kernels", "fault-programs"].iter().flat_map(|package| ["--package", package]));
    build.arg("--target-dir").arg(target).current_dir(folder);
    let built = build.status().is_ok_and(|status| status.success());
    assert!(built, "the firmware does not build: run {build:?}");
    Firmware { folder: target.join("fw") }
}
