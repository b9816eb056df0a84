//! Detached signatures of programs that ducks may run: `FILE.sig` beside `FILE`, one line of 128 hexadecimal digits, over the blake3 digest
//! of `FILE`.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use wire::key::{Domain, Key, PublicKey};

use crate::hex;
use crate::key::{KeyError, folder_of, form, line, read, sync_folder};

/// Where the signature of a file is: its name and `.sig`.
pub fn path_of(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".sig");
    name.into()
}

/// What is signed of a file: its blake3 digest.
///
/// # Errors
/// [`KeyError::Read`].
pub fn digest_of(file: &Path) -> Result<[u8; 32], KeyError> {
    let read = || {
        // Others may have no end, or never begin.
        if !std::fs::metadata(file)?.is_file() {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let mut hasher = blake3::Hasher::new();
        std::io::copy(&mut File::open(file)?, &mut hasher)?;
        Ok(*hasher.finalize().as_bytes())
    };
    read().map_err(|source| KeyError::Read { path: file.into(), source })
}

/// Signs a file and writes the signature beside it, in place of an older one; whole or not at all. Returns the signature's file.
///
/// # Errors
/// [`KeyError::Read`], [`KeyError::Write`].
pub fn create(file: &Path, key: &Key) -> Result<PathBuf, KeyError> {
    let signature = key.sign(Domain::Program, &digest_of(file)?);
    let path = path_of(file);
    let write = || {
        let everyone = Permissions::from_mode(0o644);
        let mut new = tempfile::Builder::new().permissions(everyone).tempfile_in(folder_of(&path))?;
        writeln!(new, "{}", hex::encode(&signature))?;
        new.as_file().sync_all()?;
        new.persist(&path)?;
        sync_folder(&path)
    };
    match write() {
        Ok(()) => Ok(path),
        Err(source) => Err(KeyError::Write { path, source }),
    }
}

/// Reads the signature beside a file; says nothing of whether it is good.
///
/// # Errors
/// [`KeyError::Read`], [`KeyError::Form`]; both name the signature's file.
pub fn load(file: &Path) -> Result<[u8; 64], KeyError> {
    let path = path_of(file);
    let (_, text) = read(&path, "signature")?;
    hex::decode(line(&text)).ok_or_else(|| form(&path, "signature", "expected one line of 128 hexadecimal digits"))
}

/// Whether the signature beside a file is this key's and the file is as it was signed.
///
/// # Errors
/// If either file cannot be read, or the signature is none.
pub fn verify(file: &Path, key: &PublicKey) -> Result<bool, KeyError> {
    let signature = load(file)?;
    Ok(key.verify(Domain::Program, &digest_of(file)?, &signature))
}
