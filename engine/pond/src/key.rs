//! Files of keys. A secret key is one line, `duckpond-secret-key-1` and 64 hexadecimal digits, in a file that only its owner may read; a
//! public key is the 64 digits alone.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use wire::key::{Key, PublicKey};

use crate::{NarHash, hex};

/// What a secret key's line begins with.
const HEADER: &str = "duckpond-secret-key-1";
/// Longest file that is looked at.
const LARGEST: u64 = 1024;

/// Why a key, or a signature, cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A new key would replace something.
    #[error("{} exists already and is kept; name another file, or move it away", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The system has no random numbers.
    #[error("cannot get random bytes for a key")]
    Random(#[source] io::Error),
    /// Others may read the secret.
    #[error("{} can be read by others (mode {mode:04o}); run chmod 600 {}, or make a new key if others may have", path.display(), path.display())]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is not a file of the kind.
    #[error("{} is no {kind}: {reason}", path.display())]
    Form {
        /// The file.
        path: PathBuf,
        /// What it should be.
        kind: &'static str,
        /// What is wrong with it; never its content.
        reason: String,
    },
    /// A program that was not signed by the pond's key, or has changed since.
    #[error("{} is not this pond's signature of that file: sign it again by `duckpond sign`", path.display())]
    Unsigned {
        /// The signature's file.
        path: PathBuf,
    },
    /// A program that is not the one of the description.
    #[error(
        "{} has the NAR hash {found}, expected {expected} by the pond's {field}: use the program that belongs to this description, or write its own hash there if this one is meant",
        path.display()
    )]
    OtherProgram {
        /// The program.
        path: PathBuf,
        /// The field with its hash.
        field: &'static str,
        /// By the description.
        expected: NarHash,
        /// Of the file.
        found: NarHash,
    },
    /// The secret key is another one than the description says.
    #[error("{} holds the secret of public key {found}, expected that of {expected} by the pond's public_key", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// By the description.
        expected: String,
        /// Of the file.
        found: String,
    },
}

/// Makes a key and writes it to a new file of mode 0600. The file appears whole or not at all, and never in the place of another.
///
/// # Errors
/// [`KeyError::Exists`], [`KeyError::Write`], [`KeyError::Random`].
pub fn create(path: &Path) -> Result<Key, KeyError> {
    let write = |source| KeyError::Write { path: path.into(), source };
    // Before randomness is spent; the last step below is what keeps an existing file.
    if path.symlink_metadata().is_ok() {
        return Err(KeyError::Exists { path: path.into() });
    }
    let mut seed = [0; 32];
    let mut filled = 0;
    while filled < seed.len() {
        let random = rustix::rand::getrandom(&mut seed[filled..], rustix::rand::GetRandomFlags::empty());
        filled += random.map_err(|errno| KeyError::Random(errno.into()))?;
    }
    let private = fs::Permissions::from_mode(0o600);
    let mut file = tempfile::Builder::new().permissions(private).tempfile_in(folder_of(path)).map_err(write)?;
    writeln!(file, "{HEADER} {}", hex::encode(&seed)).map_err(write)?;
    file.as_file().sync_all().map_err(write)?;
    match file.persist_noclobber(path) {
        Ok(_) => {}
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(KeyError::Exists { path: path.into() });
        }
        Err(error) => return Err(write(error.error)),
    }
    sync_folder(path).map_err(write)?;
    Ok(Key::from_seed(seed))
}

/// Reads a secret key.
///
/// # Errors
/// [`KeyError::Readable`] if the group or others may do anything with the file; [`KeyError::Form`], [`KeyError::Read`].
pub fn load(path: &Path) -> Result<Key, KeyError> {
    secret(path, &read(path, "secret key")?)
}

/// Reads a public key: from a file of its 64 digits, or from the secret key's.
///
/// # Errors
/// As [`load`]; a file of a public key may be read by anyone.
pub fn load_public(path: &Path) -> Result<PublicKey, KeyError> {
    let kind = "public key";
    let (mode, text) = read(path, kind)?;
    if text.starts_with(HEADER) {
        return Ok(secret(path, &(mode, text))?.public());
    }
    let key = hex::decode(line(&text)).map(PublicKey);
    key.ok_or_else(|| form(path, kind, "expected one line of 64 hexadecimal digits, or a secret key"))
}

fn secret(path: &Path, (mode, text): &(u32, String)) -> Result<Key, KeyError> {
    if mode & 0o077 != 0 {
        return Err(KeyError::Readable { path: path.into(), mode: *mode });
    }
    let form = |reason: String| form(path, "secret key", reason);
    let text = line(text);
    let Some(digits) = text.strip_prefix(HEADER).and_then(|rest| rest.strip_prefix(' ')) else {
        return Err(form(format!("it does not begin with {HEADER}")));
    };
    let wrong = || match digits.len() {
        64 => form("there is something else than hexadecimal digits in it".into()),
        found => form(format!("{found} characters follow {HEADER}, expected 64 hexadecimal digits")),
    };
    Ok(Key::from_seed(hex::decode(digits).ok_or_else(wrong)?))
}

pub(crate) fn form(path: &Path, kind: &'static str, reason: impl Into<String>) -> KeyError {
    KeyError::Form { path: path.into(), kind, reason: reason.into() }
}

/// A text without its line end.
pub(crate) fn line(text: &str) -> &str {
    let line = text.strip_suffix('\n').unwrap_or(text);
    line.strip_suffix('\r').unwrap_or(line)
}

/// Permissions and content of a small file of text, both of the same file whatever happens to its name meanwhile.
pub(crate) fn read(path: &Path, kind: &'static str) -> Result<(u32, String), KeyError> {
    let failed = |source| KeyError::Read { path: path.into(), source };
    // Opening a FIFO would wait for ever.
    if !fs::metadata(path).map_err(failed)?.is_file() {
        return Err(form(path, kind, "it is not a regular file"));
    }
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(form(path, kind, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > LARGEST {
        return Err(form(path, kind, format!("it has more than {LARGEST} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| form(path, kind, "it is not text"))?;
    Ok((metadata.permissions().mode() & 0o7777, text))
}

/// The folder that a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a file's name durable.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}
