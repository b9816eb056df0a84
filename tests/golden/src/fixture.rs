//! Where the regenerated checkpoint lives, and how concurrent test processes share it.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::{
    Error,
    case::Meta,
    checkpoint, data_dir, or_fail, shards,
    sums::{self, sha256},
};

/// The files of the checkpoint with the sums they were recorded with.
const SUMS: &str = include_str!("../data/deepseek-v32-tiny/checkpoint.sha256");

/// The folder of the checkpoint `deepseek-v32-tiny`: `config.json`, eight shards and their index, ready to load.
///
/// The first call of a process checks an earlier folder's sums, or generates it anew (a fraction of a second); later calls
/// only return the path. The folder lies in the cargo target directory where the test runs from one, else in the system's
/// folder for temporary files, and must be treated as read-only: tests that change a file copy it first.
///
/// # Panics
/// If the folder cannot be written, or what was generated differs from what was recorded.
#[track_caller]
pub fn deepseek_v32_tiny() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| deepseek_v32_tiny_in(&scratch_dir())).clone()
}

/// Like [`deepseek_v32_tiny`], in a folder below `parent`; checks every file on every call.
///
/// # Panics
/// If the folder cannot be written, or what was generated differs from what was recorded.
#[track_caller]
pub fn deepseek_v32_tiny_in(parent: &Path) -> PathBuf {
    or_fail(provide(parent))
}

/// The target directory's `tmp` if this program runs from a target directory (cargo tags them), so that `cargo clean` cleans
/// it; else the system's folder for temporary files.
fn scratch_dir() -> PathBuf {
    let program = env::current_exe().unwrap_or_default();
    let target = program.ancestors().skip(1).find(|folder| folder.join("CACHEDIR.TAG").is_file());
    target.map_or_else(env::temp_dir, |target| target.join("tmp"))
}

fn provide(parent: &Path) -> Result<PathBuf, Error> {
    // The name holds the version of the contents, so that two revisions of the repository do not fight over one folder.
    let name = format!("golden-deepseek-v32-tiny-{}", &sha256(SUMS.as_bytes())[..16]);
    let folder = parent.join(&name);
    fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
    let lock_path = parent.join(format!("{name}.lock"));
    let lock = File::create(&lock_path).map_err(Error::io("create", &lock_path))?;
    // Held until `lock` is dropped: other processes wait here, then find the folder complete.
    lock.lock().map_err(Error::io("lock", &lock_path))?;
    if sums::verify(&folder, SUMS).is_ok() {
        return Ok(folder);
    }
    let fresh =
        tempfile::Builder::new().prefix(&name).tempdir_in(parent).map_err(Error::io("create a folder in", parent))?;
    generate(fresh.path())?;
    sums::verify(fresh.path(), SUMS)?;
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(Error::io("remove", &folder))?;
    }
    fs::rename(fresh.path(), &folder).map_err(Error::io("move the checkpoint to", &folder))?;
    // Only now is there nothing left to clean up after a failure.
    let _ = fresh.keep();
    Ok(folder)
}

/// Writes all files of the checkpoint into `folder`.
fn generate(folder: &Path) -> Result<(), Error> {
    let data = data_dir().join("deepseek-v32-tiny");
    let meta = Meta::read(&data)?;
    shards::write(folder, &checkpoint::deepseek_v32(&meta.spec))?;
    let (from, to) = (data.join("config.json"), folder.join("config.json"));
    fs::copy(&from, &to).map_err(Error::io("copy", &from))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_checkpoint_is_the_recorded_one_and_nothing_else() {
        let parent = tempfile::tempdir().expect("a scratch folder");
        generate(parent.path()).expect("a checkpoint");
        sums::verify(parent.path(), SUMS).expect("the recorded bytes");
        let recorded = sums::parse(SUMS).count();
        assert_eq!(fs::read_dir(parent.path()).expect("the folder").count(), recorded);
    }

    #[test]
    fn shared_folder_lies_in_the_target_directory_and_stays_the_same() {
        let folder = deepseek_v32_tiny();
        assert_eq!(deepseek_v32_tiny(), folder);
        let program = env::current_exe().expect("a path");
        let target = folder.ancestors().nth(2).expect("target directory, tmp, folder");
        assert!(program.starts_with(target), "{} is not above the test", target.display());
        sums::verify(&folder, SUMS).expect("the recorded bytes");
    }

    #[test]
    fn damaged_folder_is_replaced_and_a_sound_one_kept() {
        let parent = tempfile::tempdir().expect("a scratch folder");
        let folder = deepseek_v32_tiny_in(parent.path());
        let marker = folder.join("not-part-of-it");
        fs::write(&marker, "").expect("a marker");
        assert_eq!(deepseek_v32_tiny_in(parent.path()), folder);
        assert!(marker.exists(), "a sound folder was generated again");

        let shard = folder.join("model-00003-of-000008.safetensors");
        let mut bytes = fs::read(&shard).expect("a shard");
        *bytes.last_mut().expect("a shard is not empty") ^= 1;
        fs::write(&shard, bytes).expect("a damaged shard");
        assert_eq!(deepseek_v32_tiny_in(parent.path()), folder);
        assert!(!marker.exists(), "a damaged folder was reused");
        sums::verify(&folder, SUMS).expect("a sound folder");
    }

    #[test]
    fn callers_at_the_same_time_share_one_folder() {
        let parent = tempfile::tempdir().expect("a scratch folder");
        let folders: Vec<PathBuf> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..3).map(|_| scope.spawn(|| deepseek_v32_tiny_in(parent.path()))).collect();
            callers.into_iter().map(|caller| caller.join().expect("no caller fails")).collect()
        });
        assert!(folders.iter().all(|folder| folder == &folders[0]));
        sums::verify(&folders[0], SUMS).expect("a sound folder");
        let left = fs::read_dir(parent.path()).expect("the parent").count();
        assert_eq!(left, 2, "the folder and its lock");
    }
}
