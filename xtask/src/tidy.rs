//! House rules as checks.
//!
//! Owns: the limits and the named exceptions. Rules:
//! * a function has at most 70 lines, a file at most 500;
//! * every source file begins with a module header;
//! * `unsafe` stands only in the modules that ARCHITECTURE.md names;
//! * nothing below `cli` reads the environment; only decorators and `cli` read a clock;
//! * crates depend on each other along the arrows of ARCHITECTURE.md only;
//! * functions over `Simd` are inlined always;
//! * no unfinished marks.

use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::Visit;

/// Longest function, in lines.
pub const FUNCTION_LINES: usize = 70;
/// Longest file, in lines.
pub const FILE_LINES: usize = 500;

/// Modules that may hold `unsafe`.
const UNSAFE: [&str; 5] = [
    "crates/cpu/src/simd/",
    "crates/cpu/src/threads/",
    "crates/format/src/map.rs",
    "crates/gpu/src/arena.rs",
    "crates/cpu/benches/",
];

/// What each crate may depend on, of ours.
const ARROWS: [(&str, &[&str]); 9] = [
    ("format", &[]),
    ("experts", &["format"]),
    ("model", &["experts", "format"]),
    ("cpu", &["model", "experts", "format"]),
    ("gpu", &["model", "experts", "format"]),
    ("engine", &["model", "experts", "format"]),
    ("text", &[]),
    ("serve", &["engine", "text"]),
    ("cli", &["serve", "engine", "text", "cpu", "gpu", "model", "experts", "format"]),
];

/// Files with a named reason to be longer, or with longer functions, than the rule says.
const EXCEPTIONS: [(&str, &str); 1] = [(
    "crates/model/src/reference/mod.rs",
    "one impl block of a trait: the verbs of the reference, each a few lines",
)];

/// Everything that breaks a rule, as `path:line: what`.
///
/// # Errors
/// When a file cannot be read or parsed.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for file in sources(root)? {
        let text = fs::read_to_string(&file)?;
        let name = file.strip_prefix(root)?.to_string_lossy().replace('\\', "/");
        check_file(&name, &text, &mut faults).with_context(|| name.clone())?;
    }
    check_arrows(root, &mut faults)?;
    Ok(faults)
}

fn sources(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![root.join("crates"), root.join("xtask")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && name != "fixtures" && !name.starts_with('.') {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn check_file(name: &str, text: &str, faults: &mut Vec<String>) -> Result<()> {
    let excepted = EXCEPTIONS.iter().any(|(path, _)| *path == name);
    let lines = text.lines().count();
    if lines > FILE_LINES && !excepted {
        faults.push(format!("{name}:1: {lines} lines, allowed are {FILE_LINES}"));
    }
    if !text.starts_with("//!") {
        faults.push(format!("{name}:1: the file begins without a module header (`//!`)"));
    }
    let tests = name.contains("/tests/") || name.contains("/benches/");
    for (i, line) in text.lines().enumerate() {
        check_line(name, i + 1, line, tests, faults);
    }
    let mut functions = Functions { name, faults };
    functions.visit_file(&syn::parse_file(text)?);
    Ok(())
}

/// Words that no line may hold, spelt in two parts so that this file does not hold them either.
const MARKS: [(&str, &str); 5] =
    [("to", "do!("), ("unimple", "mented!("), ("db", "g!("), ("FIX", "ME"), ("#[ign", "ore")];

fn check_line(name: &str, line: usize, text: &str, tests: bool, faults: &mut Vec<String>) {
    for (a, b) in MARKS {
        if text.contains(&format!("{a}{b}")) {
            faults.push(format!("{name}:{line}: unfinished mark {a}{b}"));
        }
    }
    let code = text.split("//").next().unwrap_or_default();
    let has = |word: &str| code.contains(word);
    let is_unsafe =
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|w| has(w));
    if is_unsafe && !UNSAFE.iter().any(|path| name.starts_with(path)) && !name.starts_with("xtask")
    {
        faults.push(format!("{name}:{line}: unsafe outside the modules that may hold it"));
    }
    let below_cli = name.starts_with("crates/") && !name.starts_with("crates/cli/") && !tests;
    if below_cli && has("env::var") {
        faults.push(format!("{name}:{line}: only cli reads the environment"));
    }
    let clock = has("Instant::now") || has("SystemTime::now");
    let timeless = ["model", "experts", "cpu", "gpu", "format"];
    if clock && !tests && timeless.iter().any(|c| name.starts_with(&format!("crates/{c}/src/"))) {
        faults.push(format!("{name}:{line}: nothing numeric reads a clock"));
    }
}

struct Functions<'a> {
    name: &'a str,
    faults: &'a mut Vec<String>,
}

impl Functions<'_> {
    fn measure(&mut self, ident: &syn::Ident, block: &syn::Block) {
        let span = block.span();
        let lines = span.end().line - span.start().line + 1;
        if lines > FUNCTION_LINES {
            let (name, line) = (self.name, span.start().line);
            let fault =
                format!("{name}:{line}: {ident} has {lines} lines, allowed are {FUNCTION_LINES}");
            self.faults.push(fault);
        }
    }
}

impl Functions<'_> {
    /// Code over vectors must end up inside the function that enables their instructions: outside
    /// every instruction becomes a call.
    fn vectors(&mut self, sig: &syn::Signature, attrs: &[syn::Attribute]) {
        let simd = |bound: &syn::TypeParamBound| match bound {
            syn::TypeParamBound::Trait(bound) => {
                bound.path.segments.last().is_some_and(|s| s.ident == "Simd")
            }
            _ => false,
        };
        let over = sig.generics.type_params().any(|param| param.bounds.iter().any(simd));
        let inlined = attrs.iter().any(|a| {
            a.path().is_ident("inline")
                && a.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "always")
        });
        let shell = attrs.iter().any(|a| a.path().is_ident("target_feature"));
        if over && !inlined && !shell {
            let (name, ident) = (self.name, &sig.ident);
            let line = ident.span().start().line;
            self.faults.push(format!("{name}:{line}: {ident} is over Simd, not inline(always)"));
        }
    }
}

impl<'a> Visit<'a> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'a syn::ItemFn) {
        self.measure(&item.sig.ident, &item.block);
        self.vectors(&item.sig, &item.attrs);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        self.measure(&item.sig.ident, &item.block);
        self.vectors(&item.sig, &item.attrs);
        syn::visit::visit_impl_item_fn(self, item);
    }
}

fn check_arrows(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    for (name, allowed) in ARROWS {
        let path = root.join("crates").join(name).join("Cargo.toml");
        let manifest: toml::Table = toml::from_str(&fs::read_to_string(&path)?)?;
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        for dependency in dependencies.into_iter().flat_map(|d| d.keys()) {
            let Some(ours) = dependency.strip_prefix("cherenkov-") else { continue };
            if !allowed.contains(&ours) {
                faults.push(format!("crates/{name}/Cargo.toml: {name} must not depend on {ours}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(name: &str, text: &str) -> Vec<String> {
        let mut faults = Vec::new();
        check_file(name, text, &mut faults).unwrap();
        faults
    }

    #[test]
    fn each_rule_can_fail() {
        let long = format!("//! Header.\nfn long() {{\n{}}}\n", "    let _ = 1;\n".repeat(70));
        assert_eq!(faults("crates/model/src/a.rs", &long).len(), 1, "function length");
        let file = format!("//! Header.\n{}", "// line\n".repeat(500));
        assert_eq!(faults("crates/model/src/a.rs", &file).len(), 1, "file length");
        assert_eq!(faults("crates/model/src/a.rs", "fn a() {}\n").len(), 1, "header");
        let bad = "//! H.\nfn a<S: Simd>(s: S) {}\n#[inline(always)]\nfn b<S: x::Simd>(s: S) {}\n";
        assert_eq!(faults("crates/cpu/src/a.rs", bad).len(), 1, "vectors");
        let bad = "//! H.\nfn a() { unsafe { b() } }\n";
        assert_eq!(faults("crates/model/src/a.rs", bad).len(), 1, "unsafe");
        assert!(faults("crates/cpu/src/simd/a.rs", bad).is_empty());
        let env = "//! H.\nfn a() { std::env::var(\"A\").ok(); }\n";
        assert_eq!(faults("crates/engine/src/a.rs", env).len(), 1, "environment");
        assert!(faults("crates/cli/src/a.rs", env).is_empty());
        let clock = "//! H.\nfn a() { std::time::Instant::now(); }\n";
        assert_eq!(faults("crates/cpu/src/a.rs", clock).len(), 1, "clock");
        let mark = format!("//! H.\nfn a() {{ {}{} }}\n", "to", "do!()");
        assert_eq!(faults("crates/cli/src/a.rs", &mark).len(), 1, "mark");
    }
}
