//! API keys: a file of them, kept as digests, compared in constant time.
//!
//! A line is a key, or a name and a key with blanks between; `#` begins a comment line. The name stands for the key in logs and when
//! clients take turns.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// Bytes of a file of keys at most.
const LARGEST: u64 = 1 << 20;
/// Characters of a key at least; a shorter one could be guessed.
const SHORTEST: usize = 8;

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the API keys in {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Too much for keys.
    #[error("{} has {found} bytes, more than the {LARGEST} that a file of API keys may have", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
    },
    /// A line that is none.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong; never the key itself.
        reason: String,
    },
    /// A file without a key would lock everybody out.
    #[error("{} has no API key", path.display())]
    None {
        /// The file.
        path: PathBuf,
    },
}

#[derive(Clone)]
struct Key {
    name: Arc<str>,
    digest: blake3::Hash,
}

/// The keys of one file.
pub struct Keys {
    path: PathBuf,
    keys: RwLock<Vec<Key>>,
}

impl Keys {
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn open(path: &Path) -> Result<Keys, KeyError> {
        Ok(Keys { path: path.to_owned(), keys: RwLock::new(read(path)?) })
    }

    /// Reads the file again; if that fails, the keys of before hold.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn reload(&self) -> Result<usize, KeyError> {
        let keys = read(&self.path)?;
        let count = keys.len();
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
        Ok(count)
    }

    /// Whose key it is. Takes the same time for every key of a length, right or wrong.
    pub fn owner(&self, presented: &str) -> Option<Arc<str>> {
        let digest = blake3::hash(presented.as_bytes());
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        // blake3 compares hashes in constant time; all are compared.
        let mut owner = None;
        for key in keys.iter() {
            if key.digest == digest {
                owner = Some(Arc::clone(&key.name));
            }
        }
        owner
    }
}

fn read(path: &Path) -> Result<Vec<Key>, KeyError> {
    let fault = |source| KeyError::Read { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(fault)?;
    // Others may have no end, or never begin; this also runs while requests do.
    if !metadata.is_file() {
        return Err(fault(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    let found = metadata.len();
    if found > LARGEST {
        return Err(KeyError::TooLarge { path: path.to_owned(), found });
    }
    warn_if_open(path);
    let text = std::fs::read_to_string(path).map_err(fault)?;
    let mut keys = Vec::new();
    // Some editors begin a file with a mark that is no part of its first line.
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |reason: String| KeyError::Line { path: path.to_owned(), line: index + 1, reason };
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, key) = match words[..] {
            [key] => (format!("key {}", keys.len() + 1), key),
            [_, note] if note.starts_with('#') => {
                return Err(wrong("a comment has a line of its own: what follows a blank is the key".to_owned()));
            }
            [name, key] => (name.to_owned(), key),
            _ => return Err(wrong(format!("expected a key, or a name and a key, found {} words", words.len()))),
        };
        let length = key.chars().count();
        if length < SHORTEST {
            return Err(wrong(format!("the key has {length} characters, expected {SHORTEST} at least")));
        }
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("the key has characters that no HTTP header carries".to_owned()));
        }
        keys.push(Key { name: name.into(), digest: blake3::hash(key.as_bytes()) });
    }
    if keys.is_empty() {
        return Err(KeyError::None { path: path.to_owned() });
    }
    Ok(keys)
}

#[cfg(unix)]
fn warn_if_open(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    if let Ok(metadata) = std::fs::metadata(path)
        && metadata.permissions().mode() & 0o004 != 0
    {
        tracing::warn!("every user of this machine can read the API keys in {}; chmod o-r it", path.display());
    }
}

#[cfg(not(unix))]
fn warn_if_open(_: &Path) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_comment_becomes_a_key_and_only_regular_files_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("keys");
        std::fs::write(&file, "\u{feff}# production-keys\nada lovelace-1815\n").expect("a file");
        let keys = Keys::open(&file).expect("one key");
        assert_eq!(keys.owner("production-keys"), None);
        assert_eq!(keys.owner("lovelace-1815").as_deref(), Some("ada"));
        std::fs::write(&file, "sesame-open-1 #laptop-of-ada\n").expect("a file");
        let error = keys.reload().expect_err("a comment is no key").to_string();
        assert!(error.contains("line of its own") && !error.contains("laptop"), "{error}");
        assert!(matches!(Keys::open(std::path::Path::new("/dev/null")), Err(KeyError::Read { .. })));
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().expect("a file for a test");
        std::fs::write(file.path(), text).expect("it can be written");
        file
    }

    #[test]
    fn keys_have_owners_and_others_none() {
        let file = file("# ours\n\nsesame-open\n  ada   lovelace-1815\n");
        let keys = Keys::open(file.path()).expect("two keys");
        assert_eq!(keys.owner("sesame-open").as_deref(), Some("key 1"));
        assert_eq!(keys.owner("lovelace-1815").as_deref(), Some("ada"));
        for wrong in ["", "sesame-ope", "sesame-open ", "ada", "# ours"] {
            assert_eq!(keys.owner(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_reload_takes_new_keys_and_a_bad_file_leaves_the_old_ones() {
        let file = file("old-key-1\n");
        let keys = Keys::open(file.path()).expect("a key");
        std::fs::write(file.path(), "new-key-1\n").expect("it can be written");
        assert_eq!(keys.reload().expect("a key"), 1);
        assert!(keys.owner("old-key-1").is_none() && keys.owner("new-key-1").is_some());
        std::fs::write(file.path(), "# none\n").expect("it can be written");
        assert!(matches!(keys.reload(), Err(KeyError::None { .. })));
        assert!(keys.owner("new-key-1").is_some());
    }

    #[test]
    fn faults_are_told_with_their_line_and_without_the_key() {
        let line = |text: &str| match Keys::open(file(text).path()) {
            Err(KeyError::Line { line, reason, .. }) => (line, reason),
            _ => panic!("it is refused for a line"),
        };
        assert_eq!(line("good-key-1\nshort"), (2, "the key has 5 characters, expected 8 at least".to_owned()));
        assert_eq!(line("a b c-key-123").0, 1);
        assert!(!line("naïve-key-1").1.contains("naïve"));
    }
}
