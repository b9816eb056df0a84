//! SHA-256 sums in the form that `sha256sum` writes: sum, two spaces, path.

use std::{fmt::Write as _, fs, path::Path};

use sha2::{Digest, Sha256};

use crate::Error;

/// The SHA-256 of `bytes` in lower-case hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all that is written to it");
        text
    })
}

/// The (path, sum) pairs of a list.
pub fn parse(list: &str) -> impl Iterator<Item = (&str, &str)> {
    list.lines().filter_map(|line| line.split_once("  ")).map(|(sum, path)| (path, sum))
}

/// Checks that every file of `list` lies under `folder` with the recorded contents.
pub fn verify(folder: &Path, list: &str) -> Result<(), Error> {
    for (name, expected) in parse(list) {
        let path = folder.join(name);
        let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
        let found = sha256(&bytes);
        if found != expected {
            return Err(Error::Sum { path, expected: expected.to_owned(), found });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_dir;

    #[test]
    fn committed_data_is_what_was_recorded() {
        let list = include_str!("../data/SHA256SUMS");
        assert_eq!(parse(list).count(), 13);
        verify(&data_dir(), list).expect("unchanged data");
    }

    #[test]
    fn a_changed_file_is_named_with_both_sums() {
        let folder = tempfile::tempdir().expect("a scratch folder");
        fs::write(folder.path().join("a"), "abc").expect("a file");
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        verify(folder.path(), &format!("{of_abc}  a\n")).expect("the published sum of abc");
        fs::write(folder.path().join("a"), "abd").expect("a file");
        let error = verify(folder.path(), &format!("{of_abc}  a\n")).expect_err("other contents");
        let message = error.to_string();
        assert!(message.contains(of_abc) && message.contains(&sha256(b"abd")), "{message}");
    }
}
