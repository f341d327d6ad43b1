//! Conversations as files.
//!
//! Owns: their JSON form, which is that of the chat APIs. Never: the engine.

use anyhow::Context as _;
use cherenkov_text::{Message, Role};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

#[derive(Debug, Serialize, Deserialize)]
struct Talk {
    messages: Vec<Turn>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Turn {
    role: String,
    content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
}

/// Writes a conversation; an old file stays whole until the new one is.
///
/// # Errors
/// When it cannot be written.
pub fn save(path: &Path, messages: &[Message]) -> anyhow::Result<()> {
    let turn = |m: &Message| Turn {
        role: m.role.name().to_owned(),
        content: m.content.clone(),
        reasoning_content: m.reasoning.clone(),
    };
    let talk = Talk { messages: messages.iter().map(turn).collect() };
    let text = serde_json::to_string_pretty(&talk).context("cannot write the conversation")?;
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(format!(".{}", std::process::id()));
    let written = fs::write(&unfinished, text + "\n").and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a conversation.
///
/// # Errors
/// When it cannot be read or is none.
pub fn load(path: &Path) -> anyhow::Result<Vec<Message>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let context = || format!("{}: not a saved conversation", path.display());
    let talk: Talk = serde_json::from_str(&text).with_context(context)?;
    let message = |turn: Turn| {
        let mut message = Message::new(Role::parse(&turn.role)?, turn.content);
        message.reasoning = turn.reasoning_content;
        anyhow::Ok(message)
    };
    talk.messages.into_iter().map(message).collect::<anyhow::Result<_>>().with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("talk.json");
        let messages = vec![
            Message::new(Role::System, "Be \"brief\".\n"),
            Message::new(Role::User, "né 🙂"),
            Message::new(Role::Assistant, "yes").with_reasoning("hm"),
        ];
        save(&path, &messages).unwrap();
        save(&path, &messages).unwrap();
        assert_eq!(load(&path).unwrap(), messages);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        for bad in ["", "{}", r#"{"messages":[{"role":"robot","content":""}]}"#] {
            fs::write(&path, bad).unwrap();
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains("x.json: not a saved conversation"), "{error}");
        }
        assert!(load(&dir.path().join("none")).is_err());
        assert!(save(&dir.path().join("no/such"), &[]).is_err());
    }
}
