//! One owner: a running engine holds its pond by a lock file, which also says who it is.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use wire::key::PublicKey;

use super::DucksError;

/// How often, and with what pause, a pond that is held is tried again.
const LOOKS: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(50);

/// Who holds a pond.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its process.
    pub pid: u32,
    /// What it was started as.
    pub command: String,
    /// Where it answers over HTTP, if it does.
    #[serde(default)]
    pub url: Option<String>,
}

/// The lock, held until it is dropped or the process ends in whatever way.
#[derive(Debug)]
pub struct Lock {
    _file: File,
    socket: PathBuf,
}

/// Where a pond's lock and control socket are. A pond is known by its key: two descriptions with one key are one pond.
pub fn paths(key: &PublicKey) -> Result<(PathBuf, PathBuf), DucksError> {
    let folder = runtime_folder()?;
    let name = pond::hex::encode(&key.id());
    Ok((folder.join(format!("{name}.lock")), folder.join(format!("{name}.sock"))))
}

impl Lock {
    /// Takes the pond for an engine, which may answer at `url`. Somebody who only looks holds it for a moment, so that is waited for.
    ///
    /// # Errors
    /// [`DucksError::Held`] by whom.
    pub fn take(key: &PublicKey, url: Option<&str>) -> Result<Lock, DucksError> {
        for _ in 0..LOOKS {
            match Lock::for_engine(key, url) {
                Err(DucksError::Held { .. }) => std::thread::sleep(BETWEEN),
                other => return other,
            }
        }
        Lock::for_engine(key, url)
    }

    /// Takes the pond if nobody has it now.
    ///
    /// # Errors
    /// As [`Lock::take`].
    pub fn try_once(key: &PublicKey) -> Result<Lock, DucksError> {
        Lock::for_engine(key, None)
    }

    fn for_engine(key: &PublicKey, url: Option<&str>) -> Result<Lock, DucksError> {
        let (path, socket) = paths(key)?;
        let failed = |source| DucksError::Runtime { path: path.clone(), source };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            return Err(match error {
                rustix::io::Errno::WOULDBLOCK => DucksError::Held { owner: owner_in(&mut file) },
                error => failed(error.into()),
            });
        }
        let command: Vec<String> = std::env::args().take(2).collect();
        let owner = Owner { pid: std::process::id(), command: command.join(" "), url: url.map(str::to_owned) };
        let text = serde_json::to_string(&owner).unwrap_or_default();
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(text.as_bytes())).map_err(failed)?;
        // A socket without a lock is what an owner that was killed has left.
        let _ = fs::remove_file(&socket);
        Ok(Lock { _file: file, socket })
    }

    /// Where the owner listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

fn owner_in(file: &mut File) -> Option<Owner> {
    let mut text = String::new();
    file.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// A folder that is this user's alone.
fn runtime_folder() -> Result<PathBuf, DucksError> {
    let uid = rustix::process::getuid();
    let stated = std::env::var_os("DUCKPOND_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let usual = || {
        let base = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
        match base {
            // Where the service is, whatever session root has.
            _ if uid.is_root() => PathBuf::from("/run/duckpond"),
            Some(base) => base.join("duckpond"),
            None => std::env::temp_dir().join(format!("duckpond-{}", uid.as_raw())),
        }
    };
    let folder = stated.unwrap_or_else(usual);
    let failed = |source| DucksError::Runtime { path: folder.clone(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(failed)?;
    // In a folder for all, somebody else may have made it first.
    let found = fs::symlink_metadata(&folder).map_err(failed)?;
    let alone = found.is_dir() && found.mode() & 0o022 == 0 && (found.uid() == uid.as_raw() || uid.is_root());
    if !alone {
        return Err(DucksError::Foreign { path: folder });
    }
    Ok(folder)
}
