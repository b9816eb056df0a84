//! Reading a converted folder back: every byte is covered by something, and everything that is wrong is listed.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::convert::{Meter, Phase, Progress};
use super::error::OpenError;
use super::manifest::{FileEntry, MANIFEST_FILE, Manifest, slice_name};
use super::slice_file::{Geometry, PAGE, Table};
use crate::checkpoint::one_line;

const BUFFER: usize = 1 << 20;

/// What a check read and found.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyReport {
    /// The folder's manifest.
    pub manifest: Manifest,
    /// Files checked.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks checked.
    pub blocks: u64,
    /// Everything that is wrong, in the order of the manifest.
    pub faults: Vec<Fault>,
}

/// Something wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: String,
    /// What it is.
    pub kind: FaultKind,
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It is absent, or no regular file.
    Missing,
    /// It is not in the manifest, and looks as if it belonged to it.
    Unexpected,
    /// The system would not read it.
    Unreadable {
        /// Its reason.
        reason: String,
    },
    /// It is longer or shorter than it should be.
    Size {
        /// By the manifest.
        expected: u64,
        /// On disk.
        found: u64,
    },
    /// Its content is not what was written, and nothing below says where.
    Digest {
        /// By the manifest.
        expected: String,
        /// Of the content.
        found: String,
    },
    /// A slice file's header is not that of this conversion and slice.
    Header,
    /// A slice file's table of checksums is damaged.
    Table,
    /// The block of a unit is damaged.
    Block {
        /// The model's layer.
        layer: u16,
        /// The expert.
        expert: usize,
        /// By the table.
        expected: u32,
        /// Of the content.
        found: u32,
    },
    /// The block of a unit fits its checksum and not its digest, so a duck would refuse it.
    UnitDigest {
        /// The model's layer.
        layer: u16,
        /// The expert.
        expert: usize,
        /// By the table.
        expected: blake3::Hash,
        /// Of the content.
        found: blake3::Hash,
    },
    /// The zeros after a block are damaged.
    Padding {
        /// The model's layer.
        layer: u16,
        /// The expert.
        expert: usize,
    },
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = &self.file;
        match &self.kind {
            FaultKind::Missing => write!(f, "{file} is missing"),
            FaultKind::Unexpected => write!(f, "{file} is not in {MANIFEST_FILE}"),
            FaultKind::Unreadable { reason } => write!(f, "{file} cannot be read: {reason}"),
            FaultKind::Size { expected, found } => write!(f, "{file} has {found} bytes, expected {expected}"),
            FaultKind::Digest { expected, found } => write!(f, "{file} has the digest {found}, expected {expected}"),
            FaultKind::Header => write!(f, "{file} has a damaged header, or belongs to another conversion"),
            FaultKind::Table => write!(f, "{file} has a damaged table of checksums"),
            FaultKind::Block { layer, expert, expected, found } => write!(
                f,
                "{file}: the block of layer {layer}, expert {expert} has the checksum {found:08x}, expected {expected:08x}"
            ),
            FaultKind::UnitDigest { layer, expert, expected, found } => {
                write!(
                    f,
                    "{file}: the block of layer {layer}, expert {expert} has the digest {found}, expected {expected}"
                )
            }
            FaultKind::Padding { layer, expert } => {
                write!(f, "{file}: the padding after the block of layer {layer}, expert {expert} is not zero")
            }
        }
    }
}

/// Checks every byte of a converted folder against its manifest, on all cores of the current thread pool.
///
/// # Errors
/// Only for a manifest that cannot be used; everything else is in the report.
pub fn verify(folder: &Path, progress: &(dyn Fn(Progress) + Sync)) -> Result<VerifyReport, OpenError> {
    let manifest = Manifest::read(folder)?;
    let geometry = manifest.geometry().expect("reading has checked it");
    let bytes = manifest.files.iter().map(|file| file.size).sum();
    let meter = Meter::new(progress, Phase::Verify, bytes);
    let check = Check { folder, manifest: &manifest, geometry, meter: &meter };
    let faults: Vec<Vec<Fault>> = manifest.files.par_iter().map(|file| check.file(file)).collect();
    let mut faults = faults.concat();
    faults.extend(check.strangers());
    Ok(VerifyReport {
        files: manifest.files.len(),
        bytes,
        blocks: (geometry.blocks() * geometry.slices) as u64,
        faults,
        manifest,
    })
}

struct Check<'a> {
    folder: &'a Path,
    manifest: &'a Manifest,
    geometry: Geometry,
    meter: &'a Meter<'a>,
}

impl Check<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn file(&self, entry: &FileEntry) -> Vec<Fault> {
        let fault = |kind| Fault { file: entry.name.clone(), kind };
        let found = match fs::metadata(self.path(&entry.name)) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return vec![fault(FaultKind::Missing)],
            Err(error) if error.kind() == io::ErrorKind::NotFound => return vec![fault(FaultKind::Missing)],
            Err(error) => return vec![fault(FaultKind::Unreadable { reason: one_line(error) })],
        };
        let mut faults = Vec::new();
        if found != entry.size {
            faults.push(FaultKind::Size { expected: entry.size, found });
        }
        let slice = (0..self.geometry.slices).find(|&slice| slice_name(slice) == entry.name);
        let read = match slice {
            Some(slice) => self.slice(slice, entry, &mut faults),
            None => self.plain(entry),
        };
        match read {
            // The digest only says that something is wrong; more exact findings replace it.
            Ok(digest) if digest != entry.blake3 && faults.is_empty() => {
                faults.push(FaultKind::Digest { expected: entry.blake3.clone(), found: digest });
            }
            Ok(_) => {}
            // The size says it already.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && !faults.is_empty() => {}
            Err(error) => faults.push(FaultKind::Unreadable { reason: one_line(error) }),
        }
        faults.into_iter().map(fault).collect()
    }

    /// The digest of a file without blocks.
    fn plain(&self, entry: &FileEntry) -> io::Result<String> {
        let mut file = Hashed::open(&self.path(&entry.name))?;
        let mut buffer = vec![0; BUFFER];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(file.digest()),
                n => self.meter.add(n as u64),
            }
        }
    }

    /// The digest of a slice file; its parts are checked on the way.
    fn slice(&self, slice: usize, entry: &FileEntry, faults: &mut Vec<FaultKind>) -> io::Result<String> {
        let geometry = &self.geometry;
        let expected = self.table(entry).unwrap_or_default();
        let expected = |number: usize| Some((*expected.checksums.get(number)?, *expected.digests.get(number)?));
        let mut file = Hashed::open(&self.path(&entry.name))?;
        let mut header = [0; PAGE as usize];
        file.read_exact(&mut header)?;
        if header[..] != geometry.header(slice, &self.manifest.model.digest()) {
            faults.push(FaultKind::Header);
        }
        let mut block = vec![0; geometry.stride() as usize];
        for number in 0..geometry.blocks() {
            file.read_exact(&mut block)?;
            let (layer, expert) = (self.manifest.model.layers[number / geometry.experts], number % geometry.experts);
            let (unit, padding) = block.split_at(geometry.layout.len());
            if let Some((checksum, digest)) = expected(number) {
                let (found, digest) = (crc32c::crc32c(unit), blake3::Hash::from_bytes(digest));
                let hashed = blake3::hash(unit);
                if found != checksum {
                    faults.push(FaultKind::Block { layer, expert, expected: checksum, found });
                } else if hashed != digest {
                    faults.push(FaultKind::UnitDigest { layer, expert, expected: digest, found: hashed });
                }
            }
            if padding.iter().any(|&byte| byte != 0) {
                faults.push(FaultKind::Padding { layer, expert });
            }
            self.meter.add(geometry.stride());
        }
        let mut table = vec![0; geometry.table_len()];
        file.read_exact(&mut table)?;
        if Table::parse(&table).is_none() {
            faults.push(FaultKind::Table);
        }
        self.meter.add(PAGE + table.len() as u64);
        let mut rest = [0; 4096];
        while file.read(&mut rest)? > 0 {}
        Ok(file.digest())
    }

    /// The table at a slice file's end, where it can be believed.
    fn table(&self, entry: &FileEntry) -> Option<Table> {
        use std::os::unix::fs::FileExt;
        let file = File::open(self.path(&entry.name)).ok()?;
        let mut table = vec![0; self.geometry.table_len()];
        file.read_exact_at(&mut table, self.geometry.offset(self.geometry.blocks())).ok()?;
        Table::parse(&table)
    }

    /// Slice files and unfinished ones that the manifest does not know.
    fn strangers(&self) -> Vec<Fault> {
        let known: BTreeSet<_> = self.manifest.files.iter().map(|file| file.name.as_str()).collect();
        let names = fs::read_dir(self.folder).into_iter().flatten().flatten();
        let names: BTreeSet<_> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let ours =
            |name: &str| name.ends_with(".duck") || name.ends_with(".partial") || name == super::output::JOURNAL_FILE;
        let strangers = names.into_iter().filter(|name| ours(name) && !known.contains(name.as_str()));
        strangers.map(|file| Fault { file: one_line(file), kind: FaultKind::Unexpected }).collect()
    }
}

/// A file whose digest grows as it is read.
struct Hashed {
    file: File,
    hasher: blake3::Hasher,
}

impl Hashed {
    fn open(path: &Path) -> io::Result<Hashed> {
        Ok(Hashed { file: File::open(path)?, hasher: blake3::Hasher::new() })
    }

    fn digest(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer)?;
        self.hasher.update(&buffer[..n]);
        Ok(n)
    }
}
