//! Owns: values printed as Python prints them, since templates are written for Python.
//! Never: the template environment.
//! Invariant: bytes equal those of `str`, `repr` and `json.dumps`, without HTML escaping.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// White space that Python's `str.strip` removes: Unicode's, and four separators that Rust leaves.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `repr(float)`.
pub(crate) fn float(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{value}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn number(value: &Value) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float)
}

/// `str(value)`.
pub(crate) fn str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => repr(value),
        _ => value.to_string(),
    }
}

fn repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number => number(value),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default()),
        ValueKind::Seq => {
            let items = value.try_iter().into_iter().flatten();
            let items: Vec<_> = items.map(|item| repr(&item)).collect();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map
            if value.as_object().is_some_and(|o| o.is_true() || o.enumerator_len() == Some(0)) =>
        {
            let pairs = value.as_object().and_then(|o| o.try_iter_pairs());
            let pairs = pairs.into_iter().flatten();
            let pairs: Vec<_> =
                pairs.map(|(key, item)| format!("{}: {}", repr(&key), repr(&item))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        _ => value.to_string(),
    }
}

fn repr_str(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

/// How `json.dumps` is asked to write.
#[derive(Debug, Clone, Default)]
pub(crate) struct JsonStyle {
    /// One level of indentation; absent: all on one line.
    pub(crate) indent: Option<String>,
    /// Separators of items, and of key and value.
    pub(crate) separators: Option<(String, String)>,
    /// Keys in order of their text.
    pub(crate) sort_keys: bool,
    /// Escapes for everything beyond ASCII, apart from `keep`.
    pub(crate) ascii: bool,
    /// Characters never escaped: marks that stand for ASCII text.
    pub(crate) keep: String,
}

impl JsonStyle {
    /// `json.dumps(value)`.
    pub(crate) fn dumps(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.write(value, 0, &mut out)?;
        Ok(out)
    }

    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&json_number(value)),
            ValueKind::String => self.write_str(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_items('[', ']', &items, depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let pairs = value.as_object().and_then(|o| o.try_iter_pairs().map(Vec::from_iter));
                let mut pairs: Vec<(String, Value)> = pairs
                    .unwrap_or_default()
                    .into_iter()
                    .map(|(key, item)| Ok((json_key(&key)?, item)))
                    .collect::<Result<_, Error>>()?;
                if self.sort_keys {
                    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                let colon = self.separators.as_ref().map_or(": ", |(_, colon)| colon.as_str());
                self.write_items('{', '}', &pairs, depth, out, |(key, item), out| {
                    self.write_str(key, out);
                    out.push_str(colon);
                    self.write(item, depth + 1, out)
                })?;
            }
            other => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("{other} is not JSON serializable"),
                ));
            }
        }
        Ok(())
    }

    fn write_items<T>(
        &self,
        open: char,
        close: char,
        items: &[T],
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        out.push(open);
        let default = if self.indent.is_some() { "," } else { ", " };
        let comma = self.separators.as_ref().map_or(default, |(comma, _)| comma.as_str());
        for (nth, item) in items.iter().enumerate() {
            if nth > 0 {
                out.push_str(comma);
            }
            self.break_line(depth + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn write_str(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            if self.ascii && !c.is_ascii() && !self.keep.contains(c) {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            } else {
                push_json_char(c, out);
            }
        }
        out.push('"');
    }
}

/// One character inside a JSON string, as both Python and the output parser write it.
pub(crate) fn push_json_char(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

fn json_number(value: &Value) -> String {
    match number(value).as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        other => other.into(),
    }
}

fn json_key(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(json_number(key)),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::None => Ok("null".into()),
        other => Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("keys must be str, int, float, bool or None, not {other}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (1e-7, "1e-07"),
            (1e20, "1e+20"),
            (1e16, "1e+16"),
            (1e15, "1000000000000000.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-2.5, "-2.5"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (5e-324, "5e-324"),
            (1.7976931348623157e308, "1.7976931348623157e+308"),
        ];
        for (value, text) in cases {
            assert_eq!(float(value), text);
        }
        assert_eq!(float(f64::NAN), "nan");
        assert_eq!(float(f64::NEG_INFINITY), "-inf");
    }

    #[test]
    fn values_print_as_in_python() {
        let list = Value::from(vec![
            Value::from("it's"),
            Value::from("a\n\"b'"),
            Value::from(true),
            Value::from(()),
            Value::from(2.0),
        ]);
        assert_eq!(str(&list), "[\"it's\", 'a\\n\"b\\'', True, None, 2.0]");
        let map = Value::from_iter([("b", Value::from(1)), ("a", list)]);
        assert!(str(&map).starts_with("{'b': 1, 'a': ["));
        assert_eq!(str(&Value::from("x")), "x");
        assert_eq!(str(&Value::from(1e20)), "1e+20");
    }
}
