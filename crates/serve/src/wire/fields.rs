//! Reading the fields of a JSON object, one by one, by name.
//!
//! Owns: the messages for a field of the wrong type, a field nobody knows, a field that asks for
//! too much. Never: what fields mean.
//! Invariant: null is the same as absent; what was not taken is refused at the end.

use crate::error::{Error, Result};
use serde_json::{Map, Value};

/// A field that this server does not do, with the value that asks for nothing.
pub(crate) struct Refused {
    pub(crate) name: &'static str,
    /// Values that ask for nothing, as JSON text.
    pub(crate) idle: &'static [&'static str],
    pub(crate) why: &'static str,
}

/// The fields of an object that have not been taken yet.
pub(crate) struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    /// The fields of a request's body.
    pub(crate) fn body(bytes: &[u8]) -> Result<Self> {
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|e| Error::invalid("body", format!("found no valid JSON ({e})")))?;
        Self::of(value, "")
    }

    /// The fields of an object at `path`.
    pub(crate) fn of(value: Value, path: &str) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { map, path: path.to_owned() }),
            other => {
                let name = if path.is_empty() { "body" } else { path };
                Err(wrong(name, &other, "an object"))
            }
        }
    }

    /// The full name of a field.
    pub(crate) fn name(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|v| !v.is_null())
    }

    /// A field that has to be there.
    pub(crate) fn need(&mut self, name: &str) -> Result<Value> {
        let full = self.name(name);
        self.take(name).ok_or_else(|| Error::invalid(full, "found nothing, expected a value"))
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(&self.name(name), &other, "a string")),
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong(&self.name(name), &other, "true or false")),
        }
    }

    pub(crate) fn float(&mut self, name: &str) -> Result<Option<f32>> {
        match self.take(name) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number as f32)),
                None => Err(wrong(&self.name(name), &value, "a number")),
            },
        }
    }

    /// A count. `100.0` is one too: some clients write all numbers so.
    pub(crate) fn count(&mut self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        count(&value).map(Some).ok_or_else(|| wrong(&self.name(name), &value, "a whole number"))
    }

    /// A count of at least one.
    pub(crate) fn positive(&mut self, name: &str) -> Result<Option<usize>> {
        match self.count(name)? {
            Some(0) => Err(Error::invalid(self.name(name), "found 0, expected at least 1")),
            other => Ok(other),
        }
    }

    /// Any 64-bit number, as the engine takes seeds.
    pub(crate) fn seed(&mut self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let seed = value.as_u64().or_else(|| value.as_i64().map(|v| v as u64));
        seed.map(Some).ok_or_else(|| wrong(&self.name(name), &value, "a whole number of 64 bits"))
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(&self.name(name), &other, "a list")),
        }
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Fields>> {
        let full = self.name(name);
        self.take(name).map(|value| Self::of(value, &full)).transpose()
    }

    /// One string, or a list of strings.
    pub(crate) fn strings(&mut self, name: &str) -> Result<Vec<String>> {
        let full = self.name(name);
        let items = match self.take(name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items,
            Some(one) => vec![one],
        };
        let string = |item: Value| match item {
            Value::String(text) => Ok(text),
            other => Err(wrong(&full, &other, "a string or a list of strings")),
        };
        items.into_iter().map(string).collect()
    }

    /// What is left.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }

    /// Refuses what is left, but for the harmless.
    pub(crate) fn finish(mut self, harmless: &[&str], refused: &[&[Refused]]) -> Result<()> {
        harmless.iter().for_each(|name| drop(self.take(name)));
        for field in refused.iter().copied().flatten() {
            let Some(value) = self.take(field.name) else { continue };
            let text = value.to_string();
            if !field.idle.contains(&text.as_str()) {
                return Err(Error::unsupported(self.name(field.name), field.why));
            }
        }
        match self.map.iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => Err(Error::unsupported(self.name(name), "unknown field")),
        }
    }
}

/// A whole number.
pub(crate) fn count(value: &Value) -> Option<usize> {
    let float = || value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f));
    value.as_u64().or_else(|| float().map(|f| f as u64)).and_then(|v| usize::try_from(v).ok())
}

/// The error for a value of the wrong type.
pub(crate) fn wrong(name: &str, found: &Value, expected: &str) -> Error {
    let mut text = found.to_string();
    if text.chars().count() > 60 {
        text = text.chars().take(60).chain("...".chars()).collect();
    }
    Error::invalid(name, format!("found {text}, expected {expected}"))
}

/// Shorthand for a table of refused fields.
pub(crate) const fn refused(
    name: &'static str,
    idle: &'static [&'static str],
    why: &'static str,
) -> Refused {
    Refused { name, idle, why }
}
