//! Owns: what the offered tools say about the types of their arguments.
//! Never: validation of arguments.
//! Invariant: an argument that no schema describes may be of any type.

use std::collections::HashMap;

use serde_json::Value as Json;

/// Nesting of schema alternatives that is followed.
const DEPTH_MAX: usize = 16;

/// JSON types that an argument may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Types {
    pub(crate) string: bool,
    pub(crate) number: bool,
    pub(crate) boolean: bool,
    pub(crate) null: bool,
    pub(crate) object: bool,
    pub(crate) array: bool,
}

impl Types {
    const NONE: Self = Self::every(false);
    /// No schema: anything goes.
    pub(crate) const ANY: Self = Self::every(true);

    const fn every(allowed: bool) -> Self {
        Self {
            string: allowed,
            number: allowed,
            boolean: allowed,
            null: allowed,
            object: allowed,
            array: allowed,
        }
    }

    /// Whether only a string is allowed, so that its text can be passed on as it comes.
    pub(crate) fn only_string(self) -> bool {
        self == Self { string: true, ..Self::NONE }
    }

    pub(crate) fn allow(self, value: &Json) -> bool {
        match value {
            Json::Null => self.null,
            Json::Bool(_) => self.boolean,
            Json::Number(_) => self.number,
            Json::String(_) => self.string,
            Json::Array(_) => self.array,
            Json::Object(_) => self.object,
        }
    }

    fn add(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "number" | "integer" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" => self.object = true,
            "array" => self.array = true,
            _ => *self = Self::ANY,
        }
    }

    fn union(&mut self, other: Self) {
        self.string |= other.string;
        self.number |= other.number;
        self.boolean |= other.boolean;
        self.null |= other.null;
        self.object |= other.object;
        self.array |= other.array;
    }

    fn of_schema(schema: &Json, depth: usize) -> Self {
        if depth > DEPTH_MAX {
            return Self::ANY;
        }
        let mut types = Self::NONE;
        match &schema["type"] {
            Json::String(name) => types.add(name),
            Json::Array(names) => {
                names.iter().filter_map(Json::as_str).for_each(|name| types.add(name));
            }
            _ => {}
        }
        if schema["nullable"] == true {
            types.null = true;
        }
        if types == Self::NONE {
            for key in ["anyOf", "oneOf"] {
                for part in schema[key].as_array().into_iter().flatten() {
                    types.union(Self::of_schema(part, depth + 1));
                }
            }
        }
        if types == Self::NONE {
            let values = schema["enum"].as_array().into_iter().flatten();
            for value in values.chain(schema.get("const")) {
                types.add(type_name(value));
            }
        }
        if types == Self::NONE { Self::ANY } else { types }
    }
}

fn type_name(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::String(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    }
}

/// Argument types of the offered tools.
#[derive(Debug, Clone, Default)]
pub struct ToolSchemas {
    functions: HashMap<String, HashMap<String, Types>>,
}

impl ToolSchemas {
    /// Reads tool definitions, wrapped in a `function` object or not.
    pub fn new(tools: &[Json]) -> Self {
        let mut functions = HashMap::new();
        for tool in tools {
            let function = tool.get("function").unwrap_or(tool);
            let Some(name) = function["name"].as_str() else { continue };
            let schema = function.get("parameters").or_else(|| function.get("input_schema"));
            let properties = schema.and_then(|s| s["properties"].as_object());
            let properties = properties.into_iter().flatten();
            let types = properties.map(|(key, schema)| (key.clone(), Types::of_schema(schema, 0)));
            functions.insert(name.to_owned(), types.collect());
        }
        Self { functions }
    }

    pub(crate) fn types(&self, function: &str, argument: &str) -> Types {
        let types = self.functions.get(function).and_then(|f| f.get(argument));
        types.copied().unwrap_or(Types::ANY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_follow_the_schema() {
        let tools =
            [json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {
                "s": {"type": "string"},
                "n": {"type": ["integer", "null"]},
                "e": {"enum": ["a", "b"]},
                "u": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "x": {"description": "free"},
                "odd": {"type": "date"}
            }}}})];
        let schemas = ToolSchemas::new(&tools);
        assert!(schemas.types("f", "s").only_string());
        assert!(schemas.types("f", "e").only_string());
        let n = schemas.types("f", "n");
        assert!(n.number && n.null && !n.string && !n.array);
        let u = schemas.types("f", "u");
        assert!(u.string && u.null && !u.number);
        for (function, argument) in [("f", "x"), ("f", "odd"), ("f", "gone"), ("g", "s")] {
            assert_eq!(schemas.types(function, argument), Types::ANY);
        }
    }
}
