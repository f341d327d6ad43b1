//! Owns: the byte buffer between tokens and text.
//! Never: stop strings or markup.
//! Invariants: only whole code points leave; the pieces together equal the whole decode, however tokens come; an
//! incomplete tail is kept while it may become whole and dropped at the end.

use crate::tokenizer::Tokenizer;

/// What becomes of tokens that the tokenizer file marks as special.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpecialTokens {
    /// They leave no text.
    #[default]
    Hide,
    /// They leave their text.
    Show,
}

/// Turns tokens into text as they come.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    specials: SpecialTokens,
    pending: Vec<u8>,
}

impl Detokenizer {
    /// A detokeniser that leaves special tokens out.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        Self::with_specials(tokenizer, SpecialTokens::Hide)
    }

    /// A detokeniser that treats special tokens as told.
    pub fn with_specials(tokenizer: &Tokenizer, specials: SpecialTokens) -> Self {
        Self { tokenizer: tokenizer.clone(), specials, pending: Vec::new() }
    }

    /// Text that became whole with this token; an id without a token leaves none.
    pub fn push(&mut self, id: u32) -> String {
        if self.specials == SpecialTokens::Hide && self.tokenizer.is_special(id) {
            return String::new();
        }
        self.push_shown(id)
    }

    /// The same, with the token's text even if it is special (an end of turn that is kept as text).
    pub fn push_shown(&mut self, id: u32) -> String {
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        self.pending.extend_from_slice(bytes);
        take_whole(&mut self.pending)
    }

    /// Bytes that wait for the rest of their character.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }

    /// Ends the text: an incomplete tail is dropped.
    pub fn finish(&mut self) {
        self.pending.clear();
    }

    /// Text of a whole run of tokens, equal to the pieces of a stream.
    pub fn decode(tokenizer: &Tokenizer, ids: &[u32], specials: SpecialTokens) -> String {
        let mut stream = Self::with_specials(tokenizer, specials);
        ids.iter().map(|id| stream.push(*id)).collect()
    }
}

/// Takes everything but an incomplete tail; bytes that can never become valid turn into U+FFFD.
fn take_whole(pending: &mut Vec<u8>) -> String {
    let mut out = String::new();
    let mut rest = pending.as_slice();
    loop {
        let error = match std::str::from_utf8(rest) {
            Ok(text) => {
                out.push_str(text);
                rest = &[];
                break;
            }
            Err(error) => error,
        };
        let (valid, after) = rest.split_at(error.valid_up_to());
        out.push_str(std::str::from_utf8(valid).unwrap_or_default());
        rest = after;
        // No length: the bytes so far begin a character that more bytes may finish.
        let Some(invalid) = error.error_len() else { break };
        out.push(char::REPLACEMENT_CHARACTER);
        rest = &rest[invalid..];
    }
    let kept = pending.len() - rest.len();
    pending.drain(..kept);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(chunks: &[&[u8]]) -> (String, Vec<u8>) {
        let mut pending = Vec::new();
        let mut out = String::new();
        for chunk in chunks {
            pending.extend_from_slice(chunk);
            out.push_str(&take_whole(&mut pending));
        }
        (out, pending)
    }

    #[test]
    fn an_incomplete_tail_waits_and_invalid_bytes_are_replaced() {
        let smile = "🙂".as_bytes();
        assert_eq!(stream(&[&smile[..2], &smile[2..]]).0, "🙂");
        assert_eq!(stream(&[b"a", &smile[..3]]), ("a".into(), smile[..3].to_vec()));
        assert_eq!(stream(&[&smile[..3], b"b"]).0, "\u{FFFD}b");
        assert_eq!(stream(&[b"\xFF", b"x"]).0, "\u{FFFD}x");
        assert_eq!(stream(&[b"\xC0\x80"]).0, "\u{FFFD}\u{FFFD}");
        assert_eq!(stream(&[b"\xED", b"\xA0", b"\x80"]).0, "\u{FFFD}\u{FFFD}\u{FFFD}");
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_split_equal_the_whole(bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), Just(0xF0), Just(0x9F), Just(0x99), Just(0x82), Just(0xE2), Just(0x82)],
            0..40,
        ), cut in prop::collection::vec(any::<bool>(), 40)) {
            let mut chunks = vec![];
            let mut from = 0;
            for (at, cut) in cut.iter().enumerate().take(bytes.len()) {
                if *cut {
                    chunks.push(&bytes[from..at]);
                    from = at;
                }
            }
            chunks.push(&bytes[from..]);
            let (text, tail) = stream(&chunks);
            let whole = String::from_utf8_lossy(&bytes[..bytes.len() - tail.len()]).into_owned();
            prop_assert_eq!(text, whole);
            prop_assert!(tail.len() < 4);
        }
    }
}
