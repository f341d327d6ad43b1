//! Checksums: xxh3-64, and lists of them as one hexadecimal string.
//!
//! Owns: the hash and its text form (16 lower-case digits each, most significant first).

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// xxh3-64 of `bytes`, seed 0.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// A list of checksums; in JSON one string of 16 digits per checksum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checksums(pub Vec<u64>);

/// Parses exactly 16 lower-case hexadecimal digits.
pub(crate) fn parse_hex(digits: &[u8]) -> Option<u64> {
    if digits.len() != 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &d| {
        let digit = match d {
            b'0'..=b'9' => d - b'0',
            b'a'..=b'f' => d - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

impl Serialize for Checksums {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|sum| format!("{sum:016x}")).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Checksums {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let sums = text.as_bytes().chunks(16).map(parse_hex).collect::<Option<Vec<u64>>>();
        sums.map(Self).ok_or_else(|| {
            de::Error::custom("found a bad checksum list, expected 16 lower-case hex digits each")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(checksum(b""), 0x2d06_8005_38d3_94c2);
    }

    #[test]
    fn lists_survive_json_and_refuse_other_digits() {
        let list = Checksums(vec![0, u64::MAX, 0x0123_4567_89ab_cdef]);
        let text = serde_json::to_string(&list).unwrap();
        assert_eq!(text, "\"0000000000000000ffffffffffffffff0123456789abcdef\"");
        assert_eq!(serde_json::from_str::<Checksums>(&text).unwrap(), list);
        for bad in
            ["\"0\"", "\"000000000000000G\"", "\"000000000000000F\"", "\"00000000000000000\""]
        {
            assert!(serde_json::from_str::<Checksums>(bad).is_err(), "{bad}");
        }
    }
}
