//! Bytes from hexadecimal digits: keys and signatures are given to people so.

/// Exactly `N` bytes from exactly twice as many digits of either case.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Some(bytes)
}
