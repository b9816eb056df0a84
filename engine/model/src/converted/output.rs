//! The folder that a conversion writes: what is finished, what is durable, and the steps that keep it so.
//!
//! A file is written as `NAME.partial`, synced, noted in the journal with its digest, and renamed. So a final name always has
//! whole content, and after a crash between two of these steps the journal says which was the last. The journal also
//! says how many blocks of the slice files are durable; it is replaced as a whole, never appended to, and removed when
//! the manifest is there.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{ConvertError, OpenError};
use super::manifest::{FileEntry, Identity, MANIFEST_FILE, Manifest, RoundingReport, VERSION};
use crate::checkpoint::one_line;

/// Name of the journal.
pub(super) const JOURNAL_FILE: &str = "journal.json";
const PARTIAL: &str = ".partial";
/// Room for journal and manifest.
const SLACK: u64 = 1 << 20;

/// What a conversion that is not finished has done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Journal {
    version: u32,
    model: Identity,
    /// Files that are whole, under their final name or about to get it.
    finished: Vec<FileEntry>,
    /// Durable blocks of every slice file that is not finished.
    pub blocks: usize,
    /// By slice: the state of its file after that many blocks.
    pub slices: BTreeMap<usize, Prefix>,
}

/// The durable beginning of a slice file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Prefix {
    /// blake3 of header and durable blocks.
    pub blake3: String,
    /// What rounding did in them.
    pub rounding: RoundingReport,
}

/// A file to be written, by name and size.
pub(super) type Wanted = (String, u64);

/// A folder with a conversion to be done or gone on with. Locked until dropped.
#[derive(Debug)]
pub(super) struct Output {
    folder: PathBuf,
    pub journal: Journal,
    _lock: File,
}

/// What was found in a folder.
pub(super) enum Opened {
    /// The same conversion, complete.
    Complete(Manifest),
    /// Something is to be done.
    Work(Output),
}

impl Output {
    /// Takes the folder, or refuses it before anything is changed in it.
    pub fn open(folder: &Path, model: &Identity, wanted: &[Wanted]) -> Result<Opened, ConvertError> {
        let write = |source| ConvertError::write(folder, source);
        let created = match fs::metadata(folder) {
            Ok(metadata) if metadata.is_dir() => false,
            Ok(_) => return Err(ConvertError::NotAFolder { path: folder.into() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                check_space(folder, wanted.iter().map(|(_, size)| size).sum())?;
                fs::create_dir_all(folder).map_err(write)?;
                true
            }
            Err(error) => return Err(write(error)),
        };
        let lock = File::open(folder).map_err(write)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ConvertError::Busy { folder: folder.into() }),
            Err(TryLockError::Error(source)) => return Err(write(source)),
        }
        let (journal, complete) = find_state(folder, model)?;
        let mut output = Output { folder: folder.into(), journal, _lock: lock };
        if let Some(manifest) = complete {
            if wanted.iter().all(|(name, size)| output.has(name, *size)) {
                return Ok(Opened::Complete(manifest));
            }
            // Some file is gone: the manifest's word no longer holds, the other files are kept.
            output.save()?;
            fs::remove_file(folder.join(MANIFEST_FILE)).map_err(write)?;
        }
        for (name, size) in wanted {
            output.recover(name, *size)?;
        }
        if !created {
            check_space(folder, wanted.iter().map(|(name, size)| output.missing(name, *size)).sum())?;
        }
        output.save()?;
        Ok(Opened::Work(output))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn partial(&self, name: &str) -> PathBuf {
        partial(&self.path(name))
    }

    pub fn finished(&self, name: &str) -> Option<&FileEntry> {
        self.journal.finished.iter().find(|entry| entry.name == name)
    }

    fn has(&self, name: &str, size: u64) -> bool {
        self.finished(name).is_some_and(|entry| entry.size == size) && size_of(&self.path(name)) == Some(size)
    }

    /// Bytes of a file that are not on disk yet.
    fn missing(&self, name: &str, size: u64) -> u64 {
        match self.finished(name) {
            Some(_) => 0,
            None => size.saturating_sub(size_of(&self.partial(name)).unwrap_or(0)),
        }
    }

    /// Finishes a rename that a crash kept from happening, or forgets a file that is not there as noted.
    fn recover(&mut self, name: &str, size: u64) -> Result<(), ConvertError> {
        if self.has(name, size) {
            return Ok(());
        }
        let (partial, path) = (self.partial(name), self.path(name));
        let digest = self.finished(name).map(|entry| entry.blake3.clone());
        if digest.is_some() && size_of(&partial) == Some(size) && hash_file(&partial).ok() == digest {
            fs::rename(&partial, &path).map_err(|source| ConvertError::write(&path, source))?;
            return sync_folder(&self.folder);
        }
        self.journal.finished.retain(|entry| entry.name != name);
        Ok(())
    }

    /// An empty file that will become `name`.
    pub fn create(&self, name: &str) -> Result<File, ConvertError> {
        let path = self.partial(name);
        File::create(&path).map_err(|source| ConvertError::write(path, source))
    }

    /// Gives synced files their final names. Journal first: if the renames are cut off, they are done the next time.
    pub fn finish(&mut self, entries: Vec<FileEntry>) -> Result<(), ConvertError> {
        let names: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
        self.journal.finished.extend(entries);
        self.save()?;
        for name in names {
            let path = self.path(&name);
            fs::rename(self.partial(&name), &path).map_err(|source| ConvertError::write(path, source))?;
        }
        sync_folder(&self.folder)
    }

    pub fn save(&self) -> Result<(), ConvertError> {
        save(&self.folder, &self.journal)
    }

    /// Writes the manifest over all `wanted` files, and ends the journal.
    pub fn complete(self, wanted: &[Wanted], unit_bytes: u64, unit_stride: u64) -> Result<Manifest, ConvertError> {
        let files = wanted.iter().map(|(name, _)| self.finished(name).expect("every file was written").clone());
        let manifest = Manifest {
            version: VERSION,
            model: self.journal.model.clone(),
            unit_bytes,
            unit_stride,
            files: files.collect(),
            checksum: String::new(),
        }
        .seal();
        write_atomic(&self.folder, MANIFEST_FILE, manifest.text().as_bytes())?;
        let journal = self.path(JOURNAL_FILE);
        fs::remove_file(&journal).map_err(|source| ConvertError::write(journal, source))?;
        Ok(manifest)
    }
}

/// The journal to go on with, and the manifest if there is one.
fn find_state(folder: &Path, model: &Identity) -> Result<(Journal, Option<Manifest>), ConvertError> {
    let fresh =
        |finished| Journal { version: VERSION, model: model.clone(), finished, blocks: 0, slices: BTreeMap::new() };
    let same = |found: &Identity| match model.difference(found) {
        None => Ok(()),
        Some((what, expected, found)) => {
            Err(ConvertError::Other { folder: folder.into(), what, expected, found: one_line(found) })
        }
    };
    let damaged = |path: PathBuf, reason| ConvertError::Journal { path, folder: folder.into(), reason };
    match Manifest::read(folder) {
        Ok(manifest) => {
            same(&manifest.model)?;
            // Left over where the program was stopped between its last two steps.
            let _ = fs::remove_file(folder.join(JOURNAL_FILE));
            return Ok((fresh(manifest.files.clone()), Some(manifest)));
        }
        Err(OpenError::NoManifest { .. }) => {}
        Err(error) => return Err(damaged(folder.join(MANIFEST_FILE), one_line(error))),
    }
    let path = folder.join(JOURNAL_FILE);
    match fs::read(&path) {
        Ok(text) => {
            let journal: Journal =
                serde_json::from_slice(&text).map_err(|error| damaged(path.clone(), one_line(error)))?;
            if journal.version != VERSION {
                return Err(damaged(path, format!("it has version {}, expected {VERSION}", journal.version)));
            }
            same(&journal.model)?;
            Ok((journal, None))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            refuse_foreign(folder)?;
            Ok((fresh(Vec::new()), None))
        }
        Err(error) => Err(ConvertError::read(path, error)),
    }
}

/// Only a folder without anything is taken for a new conversion.
fn refuse_foreign(folder: &Path) -> Result<(), ConvertError> {
    // The journal's own beginnings, and what a new file system brings with it.
    let harmless = [format!("{JOURNAL_FILE}{PARTIAL}"), "lost+found".into()];
    let read = |source| ConvertError::read(folder, source);
    for entry in fs::read_dir(folder).map_err(read)? {
        let name = entry.map_err(read)?.file_name();
        if !harmless.iter().any(|known| name == known.as_str()) {
            let found = one_line(name.to_string_lossy());
            return Err(ConvertError::Foreign { folder: folder.into(), found });
        }
    }
    Ok(())
}

pub(super) fn save(folder: &Path, journal: &Journal) -> Result<(), ConvertError> {
    let text = serde_json::to_vec_pretty(journal).expect("a journal is plain data");
    write_atomic(folder, JOURNAL_FILE, &text)
}

fn write_atomic(folder: &Path, name: &str, content: &[u8]) -> Result<(), ConvertError> {
    let path = folder.join(name);
    let write = || {
        let mut file = File::create(partial(&path))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(partial(&path), &path)
    };
    write().map_err(|source| ConvertError::write(&path, source))?;
    sync_folder(folder)
}

fn sync_folder(folder: &Path) -> Result<(), ConvertError> {
    let sync = || File::open(folder)?.sync_all();
    sync().map_err(|source| ConvertError::write(folder, source))
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PARTIAL);
    name.into()
}

/// Size of a regular file; `None` for anything else.
fn size_of(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file).map(|metadata| metadata.len())
}

fn hash_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().to_hex().to_string()),
            n => hasher.update(&buffer[..n]),
        };
    }
}

/// Whether the file system of `folder`, or of the nearest folder above it that exists, has that much room.
fn check_space(folder: &Path, needed: u64) -> Result<(), ConvertError> {
    let needed = needed + SLACK;
    let absolute = std::path::absolute(folder).map_err(|source| ConvertError::write(folder, source))?;
    let existing = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let stat = rustix::fs::statvfs(existing).map_err(|errno| ConvertError::write(existing, errno.into()))?;
    let available = stat.f_bavail.saturating_mul(stat.f_frsize);
    match needed <= available {
        true => Ok(()),
        false => Err(ConvertError::Space { folder: folder.into(), needed, available }),
    }
}
