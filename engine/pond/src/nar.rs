//! Hashes of files as Nix has them: the SHA-256 of the file's NAR, written as `nix hash path FILE` prints it.
//!
//! A NAR is Nix's archive; that of a single file holds its bytes and whether it may be run, and nothing else of it. Only such files are hashed
//! here, no folders.

use std::fmt::{self, Display};
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nix_archive::nar::{self, Node};
use serde::{Deserialize, Serialize};

use crate::FormError;

/// What an SRI hash of SHA-256 begins with.
const PREFIX: &str = "sha256-";

/// The SHA-256 of a NAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NarHash(pub [u8; 32]);

impl NarHash {
    /// Of a regular file with these bytes, which its owner may run or not.
    pub fn of_file(contents: &[u8], executable: bool) -> NarHash {
        let hash = nar::hash_tree(&Node::Regular { executable, contents });
        NarHash(hash.expect("a single file breaks no rule of archives, and hashing writes nowhere").sha256)
    }
}

impl FromStr for NarHash {
    type Err = FormError;

    fn from_str(text: &str) -> Result<NarHash, FormError> {
        let digest = text.strip_prefix(PREFIX).and_then(|digits| STANDARD.decode(digits).ok());
        let digest = digest.and_then(|digest| digest.try_into().ok());
        let form =
            || FormError::new(text, "a NAR hash: sha256- and 44 characters of base64, as `nix hash path` prints it");
        digest.map(NarHash).ok_or_else(form)
    }
}

impl Display for NarHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl TryFrom<String> for NarHash {
    type Error = FormError;

    fn try_from(text: String) -> Result<NarHash, FormError> {
        text.parse()
    }
}

impl From<NarHash> for String {
    fn from(hash: NarHash) -> String {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As printed by `nix hash path` (Nix 2.8) for files made with these bytes and mode 0644 or 0755.
    #[test]
    fn a_hash_is_the_one_that_nix_prints() {
        let long: Vec<u8> = (0..100_003u32).map(|i| (i * 7 + 3) as u8).collect();
        let cases: [(&[u8], bool, &str); 4] = [
            (b"", false, "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY="),
            (b"an ELF", false, "sha256-x81QVplIvX55QCljUMeXGgUukOGnGSTgpAzziOIYSls="),
            (b"an ELF", true, "sha256-kjQhEhmzzxh0rICefmDJ7uZg4g1VrAsg9PB3/cMbPN4="),
            (&long, false, "sha256-FJkT+jDdwkV07qC07Q/jmbQjpz0dVmptTuk3UViXv/0="),
        ];
        for (contents, executable, expected) in cases {
            let hash = NarHash::of_file(contents, executable);
            assert_eq!(hash.to_string(), expected, "{} bytes, {executable}", contents.len());
            assert_eq!(expected.parse(), Ok(hash));
        }
    }

    #[test]
    fn other_forms_are_refused_with_the_value() {
        for text in [
            "",
            "sha256-",
            "d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY=",
            "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY",
            "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kZ=",
            "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m_Hnm8GGAIU04kY=",
            "sha512-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kY=",
            "sha256:0hj4s3b2dcqvi1lbf3p4zwl4j8xkz7x7xa0wxqlsqx1pg3vfrhzh",
            "sha256-d6xi4mKdjkX2JFicDIv5niSzpyI0m/Hnm8GGAIU04kYAAAA=",
        ] {
            let error = text.parse::<NarHash>().expect_err(text).to_string();
            assert!(error.starts_with(&format!("{text:?} is not a NAR hash: ")), "{error}");
        }
    }
}
