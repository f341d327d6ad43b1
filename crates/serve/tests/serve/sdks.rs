//! The official SDKs against a running server.

use crate::support::script::Scripted;
use crate::support::{options, scripted};
use std::path::{Path, PathBuf};
use std::process::Command;

const CALL: &str = "Look.\n</think>\n\nReading.\n\n<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=read>\n<parameter=path>\nb.txt\n</parameter>\n</function>\n</tool_call>";

/// A python that has the packages: the one that `CHERENKOV_PYTHON` names, or the system's.
fn python(package: &str) -> Option<PathBuf> {
    let named = std::env::var_os("CHERENKOV_PYTHON").map(PathBuf::from);
    named.into_iter().chain([PathBuf::from("python3")]).find(|python| {
        let probe = Command::new(python).args(["-c", &format!("import {package}")]).output();
        probe.is_ok_and(|out| out.status.success())
    })
}

async fn drive(package: &str) {
    let Some(python) = python(package) else {
        println!(
            "unavailable: python package `{package}` (set CHERENKOV_PYTHON); 1 client not driven"
        );
        return;
    };
    let engine = Scripted::replies(&[
        ("hello", "A greeting.\n</think>\n\nHi there, friend!"),
        ("files", CALL),
        ("a result", "Read both.\n</think>\n\nDone."),
        ("plain", "Just text."),
    ]);
    let s = scripted(engine, options()).await;
    let script =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/clients/{package}_sdk.py"));
    let mut command = tokio::process::Command::new(python);
    let out = command.arg(script).arg(format!("http://{}", s.address)).output().await.unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{text}");
    println!("driven: {}", text.trim());
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_sdk() {
    drive("openai").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_anthropic_sdk() {
    drive("anthropic").await;
}
