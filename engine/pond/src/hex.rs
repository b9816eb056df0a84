//! Bytes as hexadecimal digits.

pub use wire::hex::decode;

/// Two lower-case digits for each byte.
pub fn encode(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_goes_both_ways_and_nothing_else_does() {
        let all: [u8; 256] = std::array::from_fn(|i| i as u8);
        assert_eq!(decode(&encode(&all)), Some(all));
        assert_eq!(decode(&encode(&all).to_uppercase()), Some(all));
        assert_eq!((decode::<2>("00f"), decode::<2>("00f00"), decode::<2>("00fg")), (None, None, None));
        assert_eq!((decode::<2>("+1+2"), decode::<2>("é00"), decode::<0>("")), (None, None, Some([])));
    }
}
