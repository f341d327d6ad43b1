//! What a line typed in a chat means.
//!
//! Owns: the slash commands. Never: carrying them out.

use std::path::PathBuf;

/// The help text.
pub const HELP: &str = "\
/help            this text
/reset           forget the conversation
/system TEXT     set the system message (without TEXT: remove it)
/think on|off    let the model think first, or not
/regen           answer the last message again
/stats           numbers of the last answer
/save FILE       write the conversation as JSON
/load FILE       read it back
/quit            leave (also ctrl-d, or ctrl-c twice)
A line that ends with \\ goes on in the next one; ctrl-c stops an answer.";

/// A line of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nothing.
    Empty,
    /// Something for the model.
    Message(String),
    /// `/help`
    Help,
    /// `/reset`
    Reset,
    /// `/system`
    System(Option<String>),
    /// `/think`
    Think(bool),
    /// `/regen`
    Regen,
    /// `/stats`
    Stats,
    /// `/save`
    Save(PathBuf),
    /// `/load`
    Load(PathBuf),
    /// `/quit`
    Quit,
    /// Something that begins with a slash and is no command.
    Unknown(String),
}

impl Line {
    /// Reads a line. Only a known word after the slash makes a command of a message of several
    /// lines or a path.
    pub fn parse(text: &str) -> Self {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Self::Empty;
        }
        let Some(command) = trimmed.strip_prefix('/') else {
            return Self::Message(text.to_owned());
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("help" | "?", "") => Self::Help,
            ("reset", "") => Self::Reset,
            ("system", "") => Self::System(None),
            ("system", text) => Self::System(Some(text.to_owned())),
            ("think", "on") => Self::Think(true),
            ("think", "off") => Self::Think(false),
            ("regen", "") => Self::Regen,
            ("stats", "") => Self::Stats,
            ("save", file) if !file.is_empty() => Self::Save(file.into()),
            ("load", file) if !file.is_empty() => Self::Load(file.into()),
            ("quit" | "exit" | "bye", "") => Self::Quit,
            _ => Self::Unknown(trimmed.lines().next().unwrap_or_default().to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        let message = |t: &str| Line::Message(t.into());
        for (text, want) in [
            ("", Line::Empty),
            ("  \n ", Line::Empty),
            ("hello", message("hello")),
            ("  two\nlines", message("  two\nlines")),
            ("/help", Line::Help),
            (" /quit ", Line::Quit),
            ("/system", Line::System(None)),
            ("/system Be brief.\nAlways.", Line::System(Some("Be brief.\nAlways.".into()))),
            ("/think on", Line::Think(true)),
            ("/think off", Line::Think(false)),
            ("/think", Line::Unknown("/think".into())),
            ("/think maybe", Line::Unknown("/think maybe".into())),
            ("/save a b.json", Line::Save("a b.json".into())),
            ("/save", Line::Unknown("/save".into())),
            ("/reset now", Line::Unknown("/reset now".into())),
            ("/usr/bin is a path", Line::Unknown("/usr/bin is a path".into())),
        ] {
            assert_eq!(Line::parse(text), want, "{text:?}");
        }
    }
}
