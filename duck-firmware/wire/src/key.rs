//! Keys and signatures: ed25519, each signature bound to what it is for.

use core::fmt;

use ed25519_compact::{KeyPair, PublicKey as Raw, Seed, Signature};

/// What a signature is for; sixteen bytes that are signed before the message, so that none can stand for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// [`Open`](crate::message::Open).
    Open,
    /// [`Reset`](crate::frozen::Reset).
    Reset,
    /// The blake3 digest of a program that ducks may run.
    Program,
}

impl Domain {
    /// The sixteen bytes.
    pub const fn prefix(self) -> &'static [u8; 16] {
        match self {
            Domain::Open => b"duckpond open  1",
            Domain::Reset => b"duckpond reset 1",
            Domain::Program => b"duckpond elf   1",
        }
    }
}

/// Longest message that is signed.
pub const MAX_SIGNED: usize = 256;

/// The domain's prefix and the message in one piece.
fn joined(domain: Domain, message: &[u8]) -> Option<([u8; 16 + MAX_SIGNED], usize)> {
    let mut all = [0; 16 + MAX_SIGNED];
    let len = 16 + message.len();
    all[..16].copy_from_slice(domain.prefix());
    all.get_mut(16..len)?.copy_from_slice(message);
    Some((all, len))
}

/// A pond's secret key; the host's.
#[derive(Clone)]
pub struct Key(KeyPair);

impl Key {
    /// From 32 secret random bytes.
    pub fn from_seed(seed: [u8; 32]) -> Key {
        Key(KeyPair::from_seed(Seed::new(seed)))
    }

    /// What ducks are told.
    pub fn public(&self) -> PublicKey {
        PublicKey(*self.0.pk)
    }

    /// Signs at most [`MAX_SIGNED`] bytes.
    pub fn sign(&self, domain: Domain, message: &[u8]) -> [u8; 64] {
        let (all, len) = joined(domain, message).expect("no message of this protocol is longer than 256 bytes");
        *self.0.sk.sign(&all[..len], None)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key(secret of {:?})", self.public())
    }
}

/// A pond's public key, the only one that a duck knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublicKey(pub [u8; 32]);

impl PublicKey {
    /// Whether `signature` is this key's, for this purpose and message. Any bytes may be asked about.
    pub fn verify(&self, domain: Domain, message: &[u8], signature: &[u8; 64]) -> bool {
        let Some((all, len)) = joined(domain, message) else { return false };
        Raw::new(self.0).verify(&all[..len], &Signature::new(*signature)).is_ok()
    }

    /// Eight bytes that name the key.
    pub fn id(&self) -> [u8; 8] {
        *blake3::hash(&self.0).as_bytes().first_chunk().expect("a digest has 32 bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_holds_for_one_purpose_message_and_key() {
        let (key, other) = (Key::from_seed([1; 32]), Key::from_seed([2; 32]));
        let signature = key.sign(Domain::Open, b"message");
        assert!(key.public().verify(Domain::Open, b"message", &signature));
        assert!(!key.public().verify(Domain::Reset, b"message", &signature));
        assert!(!key.public().verify(Domain::Open, b"massage", &signature));
        assert!(!other.public().verify(Domain::Open, b"message", &signature));
        assert!(!key.public().verify(Domain::Open, &[0; 300], &signature));
        assert!(!PublicKey([0; 32]).verify(Domain::Open, b"message", &[0; 64]), "a weak key signs nothing");
        assert_ne!(key.public().id(), other.public().id());
        assert!(!std::format!("{key:?}").contains("1, 1, 1, 1"), "secrets are not printed");
    }
}
