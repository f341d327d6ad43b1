//! Owns: the byte-level alphabet, one printable character for each of the 256 bytes.
//! Never: tokens or merges.
//! Invariant: `char_of` and `byte_of` are inverse to each other.

/// First character used for bytes that are not printable themselves.
const SHIFTED: u32 = 0x100;

fn prints_itself(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// Character that stands for each byte.
pub(crate) fn alphabet() -> [char; 256] {
    let mut chars = ['\0'; 256];
    let mut shifted = 0;
    for byte in 0..=255u8 {
        let code = if prints_itself(byte) {
            u32::from(byte)
        } else {
            shifted += 1;
            SHIFTED + shifted - 1
        };
        chars[usize::from(byte)] = char::from_u32(code).unwrap_or('\u{FFFD}');
    }
    chars
}

/// Byte that a character of the alphabet stands for.
pub(crate) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xFF if prints_itself(code as u8) => Some(code as u8),
        code @ SHIFTED..=0x143 => {
            let nth = (code - SHIFTED) as usize;
            (0..=255u8).filter(|b| !prints_itself(*b)).nth(nth)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        let chars = alphabet();
        for (byte, c) in chars.iter().enumerate() {
            assert_eq!(byte_of(*c), Some(byte as u8));
        }
        assert_eq!(chars[usize::from(b' ')], '\u{120}');
        assert_eq!(chars[usize::from(b'\n')], '\u{10A}');
        assert_eq!(byte_of('\u{144}'), None);
        assert_eq!(byte_of('\u{AD}'), None);
    }
}
