//! The tokenizer's table of bytes, and files that are damaged or foreign.

mod common;

use cherenkov_text::{Detokenizer, Prompt, SpecialTokens, Tokenizer};
use common::{fixtures, read, tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

/// A small file of the accepted kind: 256 bytes, one merge, three added tokens.
fn small() -> Value {
    let bytes = (0x21..=0x7Eu32).chain(0xA1..=0xAC).chain(0xAE..=0xFF).chain(0x100..=0x143);
    let mut vocab = serde_json::Map::new();
    for (id, code) in bytes.enumerate() {
        vocab.insert(char::from_u32(code).unwrap().to_string(), json!(id));
    }
    assert_eq!(vocab.len(), 256);
    vocab.insert("ab".into(), json!(256));
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": special})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(257, "<end>", true), added(258, "<think>", false), added(259, "</think>", false)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocab, "merges": [["a", "b"]]}
    })
}

fn load(file: &Value) -> Result<Tokenizer, cherenkov_text::Error> {
    Tokenizer::from_bytes(file.to_string().as_bytes())
}

#[test]
fn vocabulary_is_known_as_bytes() {
    let t = tokenizer();
    assert_eq!(t.vocab_size(), 4096);
    let end = t.id_of("<|im_end|>").unwrap();
    assert_eq!(t.token_bytes(end), Some(b"<|im_end|>".as_slice()));
    assert!(t.is_control(end) && t.is_special(end));
    let think = t.id_of("<think>").unwrap();
    assert!(t.is_control(think) && !t.is_special(think));
    let newline = t.id_of("\u{10A}").unwrap();
    assert_eq!(t.token_bytes(newline), Some(b"\n".as_slice()));
    assert!(!t.is_control(newline));
    assert_eq!(t.token_bytes(4096), None);
    assert_eq!(t.id_of("no such token"), None);
    for byte in 0..=255u8 {
        let found = (0..4096).any(|id| t.token_bytes(id) == Some(&[byte]));
        assert!(found, "byte {byte:#x}");
    }
}

#[test]
fn trusted_text_has_control_tokens_and_plain_text_has_none() {
    let t = load(&small()).unwrap();
    assert_eq!(t.encode("<end>ab").unwrap(), [257, 256]);
    let plain = t.encode_plain("<end>ab").unwrap();
    assert!(plain.iter().all(|id| *id <= 256));
    assert_eq!(plain.last(), Some(&256));
    let prompt = Prompt::trusted("ab<think>", &t);
    assert_eq!(t.encode_prompt(&prompt).unwrap(), [256, 258]);
    assert_eq!(prompt.start(), cherenkov_text::Start::Reasoning);
}

#[test]
fn a_control_token_that_the_model_lists_too_is_spelt_in_bytes() {
    let mut file = small();
    file["model"]["vocab"]["<end>"] = json!(257);
    file["model"]["ignore_merges"] = json!(true);
    file["pre_tokenizer"]["use_regex"] = json!(false);
    let t = load(&file).unwrap();
    assert_eq!(t.encode("<end>").unwrap(), [257]);
    let plain = t.encode_plain("<end>").unwrap();
    assert_eq!(plain.len(), 5);
    assert_eq!(Detokenizer::decode(&t, &plain, SpecialTokens::Hide), "<end>");
}

#[test]
fn tokens_made_by_normalisation_stay_content() {
    let mut file = small();
    file["added_tokens"][0]["content"] = json!("<\u{e9}>");
    file["added_tokens"][0]["normalized"] = json!(true);
    let t = load(&file).unwrap();
    assert_eq!(t.encode("<e\u{301}>").unwrap(), [257]);
    let template = "{{ messages[0].content }}<\u{e9}>";
    let template = cherenkov_text::ChatTemplate::new(template, &t).unwrap();
    let user = cherenkov_text::Message::new(cherenkov_text::Role::User, "a<e\u{301}>b");
    let talk = cherenkov_text::Conversation::new(vec![user]);
    let prompt = template.render(&talk, &Default::default()).unwrap();
    let ids = t.encode_prompt(&prompt).unwrap();
    assert_eq!(ids.iter().filter(|id| t.is_control(**id)).count(), 1);
    assert_eq!(ids.last(), Some(&257));
}

#[test]
fn ids_of_the_file_are_kept_even_with_gaps() {
    let mut file = small();
    file["added_tokens"][2]["id"] = json!(300);
    let t = load(&file).unwrap();
    assert_eq!(t.encode("</think>a<think>").unwrap(), [300, 64, 258]);
    assert_eq!(t.vocab_size(), 301);
    assert_eq!(t.token_bytes(280), None);
}

#[test]
fn foreign_and_hostile_files_are_errors() {
    type Change = fn(&mut Value);
    let changes: [(&str, Change); 19] = [
        ("model type is WordPiece", |f| f["model"]["type"] = json!("WordPiece")),
        ("byte_fallback is true", |f| f["model"]["byte_fallback"] = json!(true)),
        ("dropout is set", |f| f["model"]["dropout"] = json!(0.5)),
        ("continuing_subword_prefix is set", |f| {
            f["model"]["continuing_subword_prefix"] = json!("##");
        }),
        ("normalizer is Precompiled", |f| {
            f["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
        }),
        ("normalizer is BertNormalizer", |f| {
            f["normalizer"] =
                json!({"type": "Sequence", "normalizers": [{"type": "BertNormalizer"}]});
        }),
        ("pre_tokenizer is Metaspace", |f| f["pre_tokenizer"] = json!({"type": "Metaspace"})),
        ("decoder is missing", |f| f["decoder"] = json!(null)),
        ("decoder is WordPiece", |f| f["decoder"]["type"] = json!("WordPiece")),
        ("expected a number from 0", |f| f["model"]["vocab"]["a"] = json!(4_000_000_000_u64)),
        ("expected a number from 0", |f| f["model"]["vocab"]["a"] = json!(-1)),
        ("used twice", |f| f["model"]["vocab"]["a"] = json!(3)),
        ("vocabulary lacks", |f| {
            f["model"]["vocab"].as_object_mut().unwrap().remove("q");
        }),
        ("vocab is missing", |f| f["model"]["vocab"] = json!([])),
        ("has no id", |f| f["added_tokens"][0]["id"] = json!(u64::MAX)),
        ("is empty", |f| f["added_tokens"][0]["content"] = json!("")),
        ("listed twice", |f| f["added_tokens"][1]["id"] = json!(257)),
        ("same text", |f| f["added_tokens"][1]["content"] = json!("<end>")),
        ("tokenizer", |f| f["model"]["merges"] = json!([["a", "nothing"]])),
    ];
    for (expected, change) in changes {
        let mut file = small();
        change(&mut file);
        let error = load(&file).expect_err(expected).to_string();
        assert!(error.contains(expected), "{error} lacks {expected}");
        assert!(error.starts_with("tokenizer: "), "{error}");
    }
    let mut regex = small();
    regex["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated",
                                    "invert": false});
    assert!(load(&regex).is_err());
    let nested = "[".repeat(100_000);
    assert!(Tokenizer::from_bytes(nested.as_bytes()).is_err());
    assert!(Tokenizer::from_file(&fixtures().join("missing.json")).is_err());
}

#[test]
fn a_truncated_file_is_an_error() {
    let whole = read("tokenizer.json");
    let bytes = whole.trim_end().as_bytes();
    for len in (0..bytes.len()).step_by(bytes.len() / 97).chain([bytes.len() - 1]) {
        assert!(Tokenizer::from_bytes(&bytes[..len]).is_err(), "{len} bytes");
    }
}

#[test]
fn endless_white_space_is_refused_rather_than_tokenised_otherwise() {
    let t = tokenizer();
    assert!(t.encode_plain(&" ".repeat(900_000)).is_ok());
    let error = t.encode_plain(&" ".repeat(900_001)).unwrap_err().to_string();
    assert!(error.contains("white-space"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_changed_byte_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = small().to_string().into_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(t) = Tokenizer::from_bytes(&bytes) {
            let _ = t.encode("ab <end> \u{e9}\n");
        }
    }

    #[test]
    fn any_text_survives_encoding(text in any::<String>()) {
        let t = load(&small()).unwrap();
        let plain = t.encode_plain(&text).unwrap();
        prop_assert!(plain.iter().all(|id| !t.is_control(*id)));
        let again = Detokenizer::decode(&t, &plain, SpecialTokens::Show);
        // The file normalises to NFC, so compare what both encode to.
        prop_assert_eq!(t.encode_plain(&again).unwrap(), plain);
    }

    #[test]
    fn every_split_of_a_token_stream_equals_the_whole(ids in prop::collection::vec(0..4097u32, 0..60)) {
        let t = tokenizer();
        let mut stream = Detokenizer::with_specials(t, SpecialTokens::Show);
        let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| t.token_bytes(*id).unwrap_or_default()).copied().collect();
        let whole = String::from_utf8_lossy(&bytes[..bytes.len() - stream.pending().len()]).into_owned();
        prop_assert_eq!(pieces.concat(), whole);
        stream.finish();
        prop_assert!(stream.pending().is_empty());
    }
}

#[test]
fn special_tokens_leave_no_text_unless_asked() {
    let t = tokenizer();
    let ids = t.encode("a<|im_end|><think>b").unwrap();
    assert_eq!(Detokenizer::decode(t, &ids, SpecialTokens::Hide), "a<think>b");
    assert_eq!(Detokenizer::decode(t, &ids, SpecialTokens::Show), "a<|im_end|><think>b");
    let mut stream = Detokenizer::new(t);
    assert_eq!(stream.push_shown(t.id_of("<|im_end|>").unwrap()), "<|im_end|>");
}

#[test]
fn a_text_cut_inside_a_character_ends_before_it() {
    let t = tokenizer();
    let ids = t.encode_plain("ok 🫠").unwrap();
    let cut = &ids[..ids.len() - 1];
    assert_eq!(Detokenizer::decode(t, cut, SpecialTokens::Hide), "ok ");
    let mut stream = Detokenizer::new(t);
    let text: String = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(text, "ok 🫠");
}
