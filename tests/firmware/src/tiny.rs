//! A firmware that says its command line and ends its machine: what boot loaders can be tested with.

use std::path::{Path, PathBuf};
use std::process::Command;

/// QEMU's exit code when it has done so.
pub const EXIT: i32 = 2 * 0x10 + 1;

/// Assembles it in a folder and returns its path.
///
/// # Errors
/// What the compiler says.
pub fn assemble(folder: &Path) -> Result<PathBuf, String> {
    let path = folder.join("tiny.elf");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tiny.S");
    let mut command = Command::new("gcc");
    command.args(["-m32", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-Wl,-e,start"]);
    command.args(["-Wl,-Ttext-segment=0x1000000", "-Wl,-z,max-page-size=4096", source, "-o"]).arg(&path);
    let output = command.output().map_err(|error| format!("gcc: {error}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(path).ok_or_else(said)
}
