//! Detached signatures of programs that ducks may run: `FILE.sig` beside `FILE`, one line of 128 hexadecimal digits, over the blake3 digest
//! of `FILE`.

use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use wire::key::{Domain, Key, PublicKey};

use crate::NarHash;
use crate::hex;
use crate::key::{KeyError, folder_of, form, line, read, sync_folder};

/// Where the signature of a file is: its name and `.sig`.
pub fn path_of(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".sig");
    name.into()
}

/// Other kinds of files may have no end, or never begin.
fn open_regular(file: &Path) -> io::Result<File> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    File::open(file)
}

/// What is signed of a file: its blake3 digest.
///
/// # Errors
/// [`KeyError::Read`].
pub fn digest_of(file: &Path) -> Result<[u8; 32], KeyError> {
    let read = || {
        let mut hasher = blake3::Hasher::new();
        io::copy(&mut open_regular(file)?, &mut hasher)?;
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

/// Largest program that is read; ducks take less.
const LARGEST: u64 = 64 << 20;
/// The owner may run the file: what a NAR keeps of its permissions.
const EXECUTABLE: u32 = 0o100;

/// A program's bytes and its signature.
pub type Signed = (Vec<u8>, [u8; 64]);

/// A program as it was read, once: what is hashed is what is signed and sent.
pub struct Program {
    path: PathBuf,
    bytes: Vec<u8>,
    hash: NarHash,
}

impl Program {
    /// Reads a program; whether it is signed is another question.
    ///
    /// # Errors
    /// [`KeyError::Read`], also for a file that is too large for any program.
    pub fn read(file: &Path) -> Result<Program, KeyError> {
        let read = || {
            let opened = open_regular(file)?;
            let executable = opened.metadata()?.permissions().mode() & EXECUTABLE != 0;
            let mut bytes = Vec::new();
            opened.take(LARGEST + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > LARGEST {
                let reason = format!("it has more than {LARGEST} bytes, which no program has");
                return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
            let hash = NarHash::of_file(&bytes, executable);
            Ok(Program { path: file.into(), bytes, hash })
        };
        read().map_err(|source| KeyError::Read { path: file.into(), source })
    }

    /// The NAR hash of its file.
    pub fn hash(&self) -> NarHash {
        self.hash
    }

    /// The bytes and the signature beside the file, which is this key's.
    ///
    /// # Errors
    /// [`KeyError::Read`], [`KeyError::Form`]; [`KeyError::Unsigned`] if the signature is not of this program by this key.
    pub fn signed_by(self, key: &PublicKey) -> Result<Signed, KeyError> {
        let signature = load(&self.path)?;
        match key.verify(Domain::Program, blake3::hash(&self.bytes).as_bytes(), &signature) {
            true => Ok((self.bytes, signature)),
            false => Err(KeyError::Unsigned { path: path_of(&self.path) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(file: &Path, key: &PublicKey) -> Result<Signed, KeyError> {
        Program::read(file)?.signed_by(key)
    }

    #[test]
    fn only_a_program_that_is_as_it_was_signed_is_given_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("kernels.elf");
        let key = Key::from_seed([7; 32]);
        std::fs::write(&file, b"an ELF").expect("a file");
        assert!(matches!(program(&file, &key.public()), Err(KeyError::Read { .. })), "no signature yet");
        create(&file, &key).expect("signed");
        let (bytes, signature) = program(&file, &key.public()).expect("good");
        assert_eq!((&bytes[..], signature), (&b"an ELF"[..], load(&file).expect("just made")));
        let other = Key::from_seed([8; 32]).public();
        assert!(matches!(program(&file, &other), Err(KeyError::Unsigned { .. })));
        std::fs::write(&file, b"another").expect("a file");
        let error = program(&file, &key.public()).expect_err("changed").to_string();
        assert!(error.contains("kernels.elf.sig") && error.contains("duckpond sign"), "{error}");
    }
}
