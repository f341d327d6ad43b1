//! Owns: the text of one argument, from raw markup to JSON.
//! Never: tags.
//! Invariants: exactly one newline after the open tag and one before the close tag are dropped, every other byte
//! of a string stays; whatever comes, the JSON written is whole after `finish`.

use serde_json::Value as Json;

use super::schema::Types;
use crate::python::push_json_char;

/// An argument's value as it comes.
#[derive(Debug, Clone)]
pub(super) struct ValueWriter {
    types: Types,
    begun: bool,
    /// A newline that is dropped if nothing follows it.
    newline: bool,
    /// The raw text, for values that may be something other than a string.
    raw: String,
}

impl ValueWriter {
    /// A value of these types. A string's opening quote is written at once.
    pub(super) fn new(types: Types, json: &mut String) -> Self {
        if types.only_string() {
            json.push('"');
        }
        Self { types, begun: false, newline: false, raw: String::new() }
    }

    /// Takes more raw text.
    pub(super) fn push(&mut self, text: &str, json: &mut String) {
        for c in text.chars() {
            let first = !std::mem::replace(&mut self.begun, true);
            if first && c == '\n' {
                continue;
            }
            if std::mem::take(&mut self.newline) {
                self.put('\n', json);
            }
            if c == '\n' {
                self.newline = true;
            } else {
                self.put(c, json);
            }
        }
    }

    fn put(&mut self, c: char, json: &mut String) {
        if self.types.only_string() {
            push_json_char(c, json);
        } else {
            self.raw.push(c);
        }
    }

    /// Writes what is missing.
    pub(super) fn finish(self, json: &mut String) {
        if self.types.only_string() {
            json.push('"');
        } else {
            json.push_str(&to_json(&self.raw, self.types));
        }
    }
}

/// The JSON of a raw value: the JSON it already is, if its type is allowed, else a string.
fn to_json(raw: &str, types: Types) -> String {
    let trimmed = raw.trim();
    match serde_json::from_str::<Json>(trimmed) {
        // Strings are written raw, so quotes belong to the text where a string is allowed.
        Ok(Json::String(_)) if types.string => {}
        // The text itself, not its value: digits of long numbers stay.
        Ok(value) if types.allow(&value) || !types.string => return trimmed.to_owned(),
        _ => {}
    }
    // Python's spelling, which some templates render and models then repeat.
    match trimmed {
        "True" if types.boolean => return "true".into(),
        "False" if types.boolean => return "false".into(),
        "None" if types.null => return "null".into(),
        _ => {}
    }
    let mut out = String::with_capacity(raw.len() + 2);
    out.push('"');
    raw.chars().for_each(|c| push_json_char(c, &mut out));
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::schema::ToolSchemas;
    use serde_json::json;

    fn typed(schema: Json) -> Types {
        let tool = json!({"name": "f", "parameters": {"properties": {"x": schema}}});
        ToolSchemas::new(&[tool]).types("f", "x")
    }

    fn write(types: Types, raw: &str) -> String {
        let mut json = String::new();
        let mut value = ValueWriter::new(types, &mut json);
        value.push(raw, &mut json);
        value.finish(&mut json);
        json
    }

    #[test]
    fn strings_keep_every_byte_but_one_newline_at_each_end() {
        let string = typed(json!({"type": "string"}));
        let cases = [
            ("\nplain\n", "plain"),
            ("\n  indented\n\n", "  indented\n"),
            ("\n\n\n", "\n"),
            ("\n\n", ""),
            ("\n", ""),
            ("", ""),
            ("bare", "bare"),
            ("\n\ttab \n", "\ttab "),
            ("\nC:\\a\\\"b\"\n", "C:\\a\\\"b\""),
            ("\n42\n", "42"),
            ("\n\r\nx\r\n", "\r\nx\r"),
        ];
        for (raw, value) in cases {
            let json = write(string, raw);
            assert_eq!(serde_json::from_str::<Json>(&json).unwrap(), json!(value), "{raw:?}");
        }
    }

    #[test]
    fn other_types_are_json_and_fall_back_to_a_string() {
        let number = typed(json!({"type": "integer"}));
        assert_eq!(write(number, "\n42\n"), "42");
        assert_eq!(
            write(number, "\n123456789012345678901234567890\n"),
            "123456789012345678901234567890"
        );
        assert_eq!(write(number, "\nforty\n"), "\"forty\"");
        let boolean = typed(json!({"type": "boolean"}));
        assert_eq!(write(boolean, "\nTrue\n"), "true");
        assert_eq!(write(boolean, "false"), "false");
        let object = typed(json!({"type": "object"}));
        assert_eq!(write(object, "\n{\"a\": [1, 2.50]}\n"), "{\"a\": [1, 2.50]}");
        assert_eq!(write(object, "\n{\"a\": [1,\n"), "\"{\\\"a\\\": [1,\"");
        let maybe = typed(json!({"type": ["string", "null"]}));
        assert_eq!(write(maybe, "\nnull\n"), "null");
        assert_eq!(write(maybe, "\n42\n"), "\"42\"");
        assert_eq!(write(Types::ANY, "\n\"quoted\"\n"), "\"\\\"quoted\\\"\"");
        assert_eq!(write(Types::ANY, "\n [1] \n"), "[1]");
        assert_eq!(write(Types::ANY, "\n text \n"), "\" text \"");
        assert_eq!(write(Types::ANY, ""), "\"\"");
    }
}
