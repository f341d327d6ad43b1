//! Owns: the environment a template runs in, as close to the Python one as templates can tell.
//! Never: files, a loader, a clock.
//! Invariants: every rendering ends (fuel, recursion limit); nothing outside the context can be reached.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value};
use minijinja_contrib::pycompat;

use crate::clock::LocalTime;
use crate::python::{self, JsonStyle};

/// Instructions that one rendering may take: thousands of turns need a few million.
pub(crate) const FUEL: u64 = 50_000_000;
/// Nesting of macros and blocks.
const RECURSION: usize = 100;
/// Name of the context variable that lists the marks.
pub(crate) const MARKS: &str = "__marks";

/// What `raise_exception` was called with.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// The environment of a rendering at the given time.
pub(crate) fn environment(now: Option<LocalTime>) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_recursion_limit(RECURSION);
    env.set_fuel(Some(FUEL));
    env.set_formatter(|out, _, value| match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => Ok(out.write_str(value.as_str().unwrap_or_default())?),
        _ => Ok(out.write_str(&python::str(value))?),
    });
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", to_json);
    env.add_filter("string", |value: Value| python::str(&value));
    env.add_filter("trim", |value: Value, chars: Option<String>| {
        strip(&python::str(&value), chars.as_deref(), Side::Both)
    });
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    env.add_test("iterable", |value: &Value| {
        let kind = value.kind();
        kind == ValueKind::String || (kind != ValueKind::Undefined && value.try_iter().is_ok())
    });
    env.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
        let raised = Raised(python::str(&message));
        Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
    });
    env.add_function("strftime_now", move |pattern: String| strftime(now, &pattern));
    env
}

fn failed(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn strftime(now: Option<LocalTime>, pattern: &str) -> Result<String, Error> {
    let now = now.ok_or_else(|| failed("the template asks for the date, but no time was given"))?;
    now.format(pattern).map_err(|directive| failed(format!("unknown date directive {directive}")))
}

/// `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
fn to_json(
    state: &State,
    value: &Value,
    ascii: Option<Value>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let flag = |name| -> Result<bool, Error> {
        Ok(kwargs.get::<Option<Value>>(name)?.is_some_and(|v| v.is_true()))
    };
    let mut style = JsonStyle {
        ascii: ascii.is_some_and(|v| v.is_true()) || flag("ensure_ascii")?,
        sort_keys: flag("sort_keys")?,
        ..Default::default()
    };
    if let Some(indent) = kwargs.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()) {
        style.indent = Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        });
    }
    if let Some(pair) = kwargs.get::<Option<Value>>("separators")?.filter(|v| !v.is_none()) {
        let pair: Vec<String> = pair.try_iter()?.map(|v| python::str(&v)).collect();
        let pair: [String; 2] = pair.try_into().map_err(|_| failed("separators must be a pair"))?;
        let [comma, colon] = pair;
        style.separators = Some((comma, colon));
    }
    kwargs.assert_all_used()?;
    if style.ascii {
        style.keep = state.lookup(MARKS).map(|v| v.to_string()).unwrap_or_default();
    }
    style.dumps(value).map(Value::from)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    Both,
}

fn strip(text: &str, chars: Option<&str>, side: Side) -> String {
    let gone = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    let mut text = text;
    if side != Side::Right {
        text = text.trim_start_matches(gone);
    }
    if side != Side::Left {
        text = text.trim_end_matches(gone);
    }
    text.to_owned()
}

/// Python methods: a few of strings here, the rest as `pycompat` has them.
fn method(state: &State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, args);
    };
    let one = || args.first().and_then(Value::as_str);
    let done = match (name, args.len()) {
        ("strip", 0 | 1) => strip(text, one(), Side::Both),
        ("lstrip", 0 | 1) => strip(text, one(), Side::Left),
        ("rstrip", 0 | 1) => strip(text, one(), Side::Right),
        ("removeprefix", 1) => {
            one().and_then(|prefix| text.strip_prefix(prefix)).unwrap_or(text).to_owned()
        }
        ("removesuffix", 1) => {
            one().and_then(|suffix| text.strip_suffix(suffix)).unwrap_or(text).to_owned()
        }
        ("title", 0) => title(text),
        ("split", 0) => {
            let words = text.split(python::is_space).filter(|word| !word.is_empty());
            return Ok(words.map(Value::from).collect());
        }
        ("rsplit", 1 | 2) => return rsplit(text, args),
        ("partition" | "rpartition", 1) => {
            let by = one().filter(|by| !by.is_empty());
            let by = by.ok_or_else(|| failed("separator must be a text that is not empty"))?;
            return Ok(partition(
                text,
                by,
                if name == "partition" { Side::Left } else { Side::Right },
            ));
        }
        _ => return pycompat::unknown_method_callback(state, value, name, args),
    };
    Ok(Value::from(done))
}

fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = c.is_alphabetic();
    }
    out
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (by, Rest(limit)): (&str, Rest<i64>) = minijinja::value::from_args(args)?;
    if by.is_empty() {
        return Err(failed("empty separator"));
    }
    let limit = limit.first().copied().unwrap_or(-1);
    let count = usize::try_from(limit).map_or(usize::MAX, |limit| limit.saturating_add(1));
    let mut parts: Vec<Value> = text.rsplitn(count, by).map(Value::from).collect();
    parts.reverse();
    Ok(Value::from(parts))
}

fn partition(text: &str, by: &str, side: Side) -> Value {
    let halves = if side == Side::Left { text.split_once(by) } else { text.rsplit_once(by) };
    let parts = match (halves, side) {
        (Some((head, tail)), _) => [head, by, tail],
        (None, Side::Left) => [text, "", ""],
        (None, _) => ["", "", text],
    };
    parts.into_iter().map(Value::from).collect()
}
