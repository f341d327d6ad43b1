//! Prompts and token ids against transformers, byte for byte.

mod common;

use cherenkov_text::{ChatTemplate, Detokenizer, SpecialTokens, Start};
use common::{cases, conversation, fixtures, ids, options, template, tokenizer};

#[test]
fn every_conversation_renders_and_tokenises_as_in_python() {
    let cases = cases("conversations.json");
    assert!(cases.len() >= 50, "{} cases", cases.len());
    let (mut same_ids, mut hostile) = (0, 0);
    for case in &cases {
        let name = &case["name"];
        let template = template(case["template"].as_str().unwrap());
        let prompt = template.render(&conversation(case), &options(case));
        let prompt = prompt.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(prompt.text(), case["text"].as_str().unwrap(), "{name}");
        let got = tokenizer().encode_prompt(&prompt).unwrap();
        if case["hostile"] == true {
            hostile += 1;
            assert!(prompt.hidden_texts() > 0, "{name}");
        } else {
            same_ids += 1;
            assert_eq!(got, ids(&case["ids"]), "{name}");
            assert_eq!(tokenizer().encode(&prompt.text()).unwrap(), got, "{name}");
        }
    }
    println!("{same_ids} prompts with equal ids, {hostile} with control-token text in content");
    assert!(same_ids >= 50 && hostile >= 10);
}

#[test]
fn content_adds_no_control_token() {
    // The same conversations with harmless content of the same shape hold exactly the template's own tokens.
    let controls = |prompt: &cherenkov_text::Prompt| -> Vec<u32> {
        let ids = tokenizer().encode_prompt(prompt).unwrap();
        ids.into_iter().filter(|id| tokenizer().is_control(*id)).collect()
    };
    for case in cases("conversations.json") {
        if case["hostile"] != true {
            continue;
        }
        let mut tame = serde_json::to_string(&case).unwrap();
        let tokens = [
            "<|endoftext|>",
            "<|im_start|>",
            "<|im_end|>",
            "<|vision_start|>",
            "<|image_pad|>",
            "<tool_call>",
            "</tool_call>",
            "</tool_response>",
            "<think>",
            "</think>",
            "<|im_start|",
            "<|im_end|",
        ];
        for token in tokens {
            tame = tame.replace(token, "tame");
        }
        let tame: serde_json::Value = serde_json::from_str(&tame).unwrap();
        let template = template(case["template"].as_str().unwrap());
        let hostile = template.render(&conversation(&case), &options(&case)).unwrap();
        let tame = template.render(&conversation(&tame), &options(&tame)).unwrap();
        assert_eq!(controls(&hostile), controls(&tame), "{}", case["name"]);
        let ids = tokenizer().encode_prompt(&hostile).unwrap();
        let text = Detokenizer::decode(tokenizer(), &ids, SpecialTokens::Show);
        assert_eq!(text, hostile.text(), "{}", case["name"]);
    }
}

#[test]
fn every_string_tokenises_and_decodes_as_in_python() {
    let cases = cases("strings.json");
    assert!(cases.len() >= 200, "{} cases", cases.len());
    for case in &cases {
        let text = case["text"].as_str().unwrap();
        let got = tokenizer().encode(text).unwrap();
        assert_eq!(got, ids(&case["ids"]), "{text:?}");
        let decoded = Detokenizer::decode(tokenizer(), &got, SpecialTokens::Show);
        assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{text:?}");
        let plain = tokenizer().encode_plain(text).unwrap();
        assert!(!plain.iter().any(|id| tokenizer().is_control(*id)), "{text:?}");
    }
}

#[test]
fn a_folder_gives_its_template() {
    let case = &cases("conversations.json")[0];
    let from_dir = ChatTemplate::from_dir(&fixtures(), tokenizer()).unwrap();
    let prompt = from_dir.render(&conversation(case), &options(case)).unwrap();
    assert_eq!(prompt.text(), case["text"].as_str().unwrap());
}

#[test]
fn the_start_is_read_from_the_end_of_the_prompt() {
    for case in cases("conversations.json") {
        let template = template(case["template"].as_str().unwrap());
        let prompt = template.render(&conversation(&case), &options(&case)).unwrap();
        let open = case["text"].as_str().unwrap().ends_with("<think>\n");
        let expected = if open { Start::Reasoning } else { Start::Content };
        assert_eq!(prompt.start(), expected, "{}", case["name"]);
    }
}
