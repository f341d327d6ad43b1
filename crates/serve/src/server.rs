//! The server as the command line sees it.
//!
//! Owns: the worker's thread, the life of the listener, the drain.
//! Never: signals, settings. Invariant: when `serve` returns, the worker's thread has ended.

use crate::error::{Error, Result};
use crate::http::{App, router};
use crate::options::{ServeOptions, TextModel};
use crate::snapshot::{Health, Snapshot};
use crate::worker::{self, Desk, Event};
use cherenkov_engine::Engine;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, watch};

/// Requests that run at a time, where nothing else is known.
const RUNNING: usize = 8;
/// How long connections get to write the last events after their requests were ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

type Load = Box<dyn FnOnce() -> std::result::Result<Box<dyn Engine>, String> + Send>;

/// A server that does not listen yet.
pub struct Server {
    load: Load,
    desk: Desk,
    publish: watch::Sender<Arc<Snapshot>>,
}

impl Server {
    /// A server over an engine that is ready.
    pub fn new(engine: Box<dyn Engine>, text: TextModel, options: ServeOptions) -> Self {
        Self::loading(move || Ok(engine), text, options)
    }

    /// A server that answers `/health` while its engine is being loaded on the worker's thread. The
    /// error of `load` becomes the error of [`Server::serve`].
    pub fn loading(
        load: impl FnOnce() -> std::result::Result<Box<dyn Engine>, String> + Send + 'static,
        text: TextModel,
        options: ServeOptions,
    ) -> Self {
        let desk = Desk {
            text: Arc::new(text),
            options: Arc::new(options),
            info: Arc::new(OnceLock::new()),
        };
        let (publish, _) = watch::channel(Arc::new(Snapshot::loading()));
        Self { load: Box::new(load), desk, publish }
    }

    /// What the worker shows of itself, now and later.
    pub fn watch(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.publish.subscribe()
    }

    /// Serves until `shutdown` is ready: then no connection is accepted any more, running requests may
    /// finish within the drain time, and the rest end with an error.
    ///
    /// # Errors
    /// When the listener fails, no thread can be made, or the engine does not load.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let address = listener.local_addr().map_err(io("listening"))?;
        let (events, inbox) = mpsc::channel();
        let capacity = self.desk.options.running.unwrap_or(RUNNING) + self.desk.options.queue;
        let app = Arc::new(App {
            desk: self.desk.clone(),
            events: events.clone(),
            snapshot: self.publish.subscribe(),
            places: Arc::new(Semaphore::new(capacity)),
            capacity,
            ids: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            loopback: address.ip().is_loopback(),
        });
        let (load, desk, publish) = (self.load, self.desk, self.publish);
        let mut seen = publish.subscribe();
        let drain = desk.options.drain;
        let thread = thread::Builder::new()
            .name("worker".into())
            .spawn(move || worker::run(load, desk, inbox, publish))
            .map_err(io("starting the worker"))?;

        let begun = Arc::new(Notify::new());
        let graceful = stop(Arc::clone(&app), seen.clone(), shutdown, Arc::clone(&begun));
        let served = axum::serve(listener, router(&app)).with_graceful_shutdown(graceful);
        let mut served = std::pin::pin!(served.into_future());
        let result = tokio::select! {
            result = &mut served => result,
            () = late(&begun, drain) => {
                let _ = events.send(Event::Stop);
                tokio::time::timeout(LAST_WORDS, served).await.unwrap_or(Ok(()))
            }
        };
        let failed = load_failure(&app, &seen.borrow_and_update());
        let _ = events.send(Event::Stop);
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        result.map_err(io("serving"))?;
        if let Some(reason) = failed {
            return Err(Error::Degraded(reason));
        }
        match joined {
            Ok(Ok(())) => Ok(()),
            _ => Err(Error::Panicked("the worker's thread ended early".into())),
        }
    }
}

fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    move |source| Error::Io { what, source }
}

/// Why the engine could not be loaded, if so.
fn load_failure(app: &App, snapshot: &Snapshot) -> Option<String> {
    match &snapshot.health {
        Health::Degraded(reason) if app.desk.info.get().is_none() => Some(reason.clone()),
        _ => None,
    }
}

/// Ready when the server has to stop.
async fn stop(
    app: Arc<App>,
    mut seen: watch::Receiver<Arc<Snapshot>>,
    shutdown: impl Future<Output = ()>,
    begun: Arc<Notify>,
) {
    let failed = seen.wait_for(|snapshot| load_failure(&app, snapshot).is_some());
    let failed = async {
        if failed.await.is_err() {
            // The worker ended on its own; the shutdown decides.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = shutdown => {}
        () = failed => {}
    }
    app.stopping.store(true, Ordering::Relaxed);
    begun.notify_one();
}

/// Ready when the drain time is over.
async fn late(begun: &Notify, drain: Duration) {
    begun.notified().await;
    tokio::time::sleep(drain).await;
}
