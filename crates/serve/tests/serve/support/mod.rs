//! Scripted engines, servers over them, and a small HTTP client.

pub mod client;
pub mod script;

use cherenkov_engine::{Engine, SampleParams};
use cherenkov_serve::{Clock, ServeOptions, Server, Snapshot, TextModel};
use cherenkov_text::{ChatTemplate, Tokenizer};
use client::Client;
use script::{Control, Scripted};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let file = root().join("crates/text/tests/fixtures/tokenizer.json");
        Tokenizer::from_file(&file).unwrap()
    })
}

/// The text side of the scripted model.
pub fn text() -> TextModel {
    let file = root().join("crates/text/tests/fixtures/official_style.jinja");
    let source = std::fs::read_to_string(file).unwrap();
    TextModel {
        name: "scripted".into(),
        aliases: vec!["alias".into()],
        tokenizer: tokenizer().clone(),
        template: Some(ChatTemplate::new(&source, tokenizer()).unwrap()),
        thinking: SampleParams::default(),
        plain: SampleParams::default(),
    }
}

/// Options with a clock that stands still, so that transcripts are the same every time.
pub fn options() -> ServeOptions {
    ServeOptions {
        clock: Clock::new(|| Duration::from_secs(1_700_000_000)),
        instance: "t".into(),
        drain: Duration::from_secs(5),
        ..ServeOptions::default()
    }
}

/// A server that runs.
pub struct Running {
    pub address: SocketAddr,
    pub control: Control,
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    pub stop: Option<oneshot::Sender<()>>,
    pub task: Option<JoinHandle<cherenkov_serve::Result<()>>>,
}

impl Drop for Running {
    /// A test that fails must not leave the worker waiting for a permit.
    fn drop(&mut self) {
        self.control.release();
    }
}

impl Running {
    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Asks the server to stop and waits until it has.
    pub async fn stop(mut self) -> cherenkov_serve::Result<()> {
        let _ = self.stop.take().unwrap().send(());
        self.task.take().unwrap().await.unwrap()
    }

    /// Waits until the worker's picture is as told.
    pub async fn until(&self, what: &str, is: impl FnMut(&Arc<Snapshot>) -> bool) -> Arc<Snapshot> {
        let mut snapshots = self.snapshots.clone();
        let wait = tokio::time::timeout(Duration::from_secs(20), snapshots.wait_for(is)).await;
        wait.unwrap_or_else(|_| panic!("never came: {what}")).unwrap().clone()
    }
}

/// Serves a server on a loopback port.
pub async fn start(server: Server, control: Control) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let snapshots = server.watch();
    let shutdown = async {
        let _ = stopped.await;
    };
    let task = tokio::spawn(server.serve(listener, shutdown));
    Running { address, control, snapshots, stop: Some(stop), task: Some(task) }
}

/// Serves a scripted engine.
pub async fn scripted(engine: Scripted, options: ServeOptions) -> Running {
    let control = engine.control();
    let running = start(Server::new(Box::new(engine), text(), options), control).await;
    running.until("ready", |s| s.health == cherenkov_serve::Health::Ready).await;
    running
}

/// Serves another engine.
pub async fn engine(engine: Box<dyn Engine>, text: TextModel, options: ServeOptions) -> Running {
    let running = start(Server::new(engine, text, options), Control::default()).await;
    running.until("ready", |s| s.health == cherenkov_serve::Health::Ready).await;
    running
}

/// Compares a transcript with the one on disk, byte by byte. With `BLESS` set it writes it instead.
pub fn transcript(name: &str, found: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, found).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(found, expected, "{} differs; set BLESS to accept", file.display());
}
