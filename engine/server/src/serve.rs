//! A server from start to end: checks, sockets, signals, an orderly stop.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use model::tokenizer::Tokenizer;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::api::generation::Defaults;
use crate::api::{App, Guard, Limits, Shared, routes};
use crate::backend::{Backend, BoxError, ModelInfo};
use crate::keys::{KeyError, Keys};
use crate::listen;
use crate::metrics::Metrics;
use crate::scheduler::{Load, Loading, Scheduler};
use crate::socket;
use crate::systemd::Systemd;
use crate::tls::{Tls, TlsError};

/// Threads for sockets and requests: they do little, and the engine wants the cores.
const THREADS: usize = 2;

/// How to serve.
pub struct Options {
    /// Where to listen.
    pub host: IpAddr,
    /// And on which port; 0: any.
    pub port: u16,
    /// A file of API keys.
    pub keys: Option<PathBuf>,
    /// Whether everybody may ask without a key although others than this machine can reach the server.
    pub allow_anyone: bool,
    /// Certificate chain and key, for HTTPS.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Which hosts and pages may ask.
    pub guard: Guard,
    /// What a request may cost.
    pub limits: Limits,
    /// What holds where a request says nothing.
    pub defaults: Defaults,
    /// The model.
    pub model: ModelInfo,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Everybody could use it.
    #[error(
        "{host} can be reached from other machines, and without API keys everybody there could use the model: \
        give a file with --api-keys, or --allow-anyone to force it"
    )]
    Open {
        /// The address.
        host: IpAddr,
    },
    /// The keys.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// No threads, no signals.
    #[error("cannot start the server")]
    Start(#[source] std::io::Error),
    /// The model could not be loaded, or failed for good.
    #[error("{0}")]
    Broken(String),
}

/// A running server.
pub struct Server {
    runtime: Runtime,
    scheduler: Scheduler,
    thread: JoinHandle<()>,
    address: SocketAddr,
    url: String,
    close: watch::Sender<bool>,
    served: tokio::task::JoinHandle<()>,
    keys: Option<Arc<Keys>>,
    grace: Duration,
    systemd: Arc<Systemd>,
}

impl Server {
    /// Listens at once, and has `load` load the model meanwhile; it is told the server's address.
    ///
    /// # Errors
    /// [`ServeError`]; a model that cannot be loaded is one of [`run`](Self::run).
    pub fn start<B: Backend + 'static>(
        options: Options,
        load: impl FnOnce(&Loading<'_>, &str) -> Result<B, BoxError> + Send + 'static,
    ) -> Result<Server, ServeError> {
        let Options { host, port, keys, allow_anyone, tls, guard, limits, defaults, model, tokenizer } = options;
        if keys.is_none() && !host.is_loopback() && !allow_anyone {
            return Err(ServeError::Open { host });
        }
        let keys = keys.map(|path| Keys::open(&path)).transpose()?.map(Arc::new);
        let tls = tls.map(|(certificate, key)| Tls::open(&certificate, &key)).transpose()?;
        socket::allow_many_files();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .map_err(ServeError::Start)?;
        let address = SocketAddr::new(host, port);
        let fault = |source| ServeError::Listen { address, source };
        let listener = runtime.block_on(TcpListener::bind(address)).map_err(fault)?;
        let address = listener.local_addr().map_err(fault)?;
        let url = format!("{}://{address}", if tls.is_some() { "https" } else { "http" });
        let of_load = url.clone();
        let load = move |loading: &Loading<'_>| load(loading, &of_load);
        let metrics = Arc::new(Metrics::new());
        metrics.caches(model.max_len);
        let systemd = Arc::new(Systemd::of_process());
        let (scheduler, thread) = Scheduler::start(load, limits.waiting, Arc::clone(&metrics), Arc::clone(&systemd))
            .map_err(ServeError::Start)?;
        let (grace, connections) = (limits.grace, limits.connections);
        let app = App::new(Shared {
            model,
            tokenizer,
            defaults,
            limits,
            scheduler: scheduler.clone(),
            metrics,
            keys: keys.clone(),
            guard,
            grammars: OnceLock::new(),
        });
        let (close, closing) = watch::channel(false);
        let served = runtime.spawn(listen::serve(listener, tls, routes(app), connections, closing));
        Ok(Server { runtime, scheduler, thread, address, url, close, served, keys, grace, systemd })
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The address, with the port that was found.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until SIGTERM or SIGINT comes, or the model fails. Running answers may then end within the limit; a second signal ends
    /// the process. SIGHUP has the keys read again. `on_ready` is called once the model is there.
    ///
    /// # Errors
    /// The model failed.
    pub fn run(self, on_ready: impl FnOnce()) -> Result<(), ServeError> {
        let until = self.runtime.block_on(self.until_stopped(on_ready));
        let broken = self.scheduler.load().broken;
        self.stop();
        until?;
        match broken {
            Some(reason) => Err(ServeError::Broken(reason)),
            None => Ok(()),
        }
    }

    async fn until_stopped(&self, on_ready: impl FnOnce()) -> Result<(), ServeError> {
        let listen = |kind| signal(kind).map_err(ServeError::Start);
        let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let mut hang_up = listen(SignalKind::hangup())?;
        let mut changes = self.scheduler.changes();
        let mut on_ready = Some(on_ready);
        loop {
            let load = self.scheduler.load();
            if load.broken.is_some() {
                return Ok(());
            }
            if load.ready
                && let Some(on_ready) = on_ready.take()
            {
                on_ready();
            }
            tokio::select! {
                _ = changes.changed() => {}
                _ = term.recv() => break,
                _ = int.recv() => break,
                _ = hang_up.recv() => self.reload(),
            }
        }
        tokio::spawn(end_at_once(term, int));
        Ok(())
    }

    /// Reads the keys again.
    fn reload(&self) {
        self.systemd.reloading();
        match self.keys.as_ref().map(|keys| keys.reload()) {
            None => tracing::info!("there are no API keys to read again"),
            Some(Ok(count)) => tracing::info!(count, "API keys read again"),
            Some(Err(error)) => {
                let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
                tracing::error!("the API keys of before hold: {error}{cause}");
            }
        }
        if self.scheduler.load().ready {
            self.systemd.ready();
        }
    }

    /// Takes no new requests, lets those of which something runs end within the limit, closes all connections.
    pub fn stop(self) {
        if self.scheduler.load().broken.is_none() {
            self.systemd.stopping(self.grace);
        }
        self.scheduler.stop();
        self.runtime.block_on(async {
            let end = Instant::now() + self.grace;
            let mut changes = self.scheduler.changes();
            let busy = |load: Load| load.running + load.waiting > 0 && load.broken.is_none();
            while busy(self.scheduler.load()) {
                if timeout_at(end, changes.changed()).await.is_err() {
                    tracing::warn!("an answer is cut off: it would take longer than {} s", self.grace.as_secs());
                    self.scheduler.abort();
                    break;
                }
            }
            self.close.send_replace(true);
            let _ = self.served.await;
        });
        // A model that is still loading, or a step that does not end, must not hold up the end of the process.
        if self.thread.is_finished() || self.scheduler.load().ready {
            let (ended, wait) = std::sync::mpsc::channel();
            let thread = self.thread;
            let joined = std::thread::spawn(move || {
                let _ = thread.join();
                let _ = ended.send(());
            });
            if wait.recv_timeout(Duration::from_secs(5)).is_ok() {
                let _ = joined.join();
            }
        }
        self.runtime.shutdown_background();
    }
}

/// Whoever asks twice does not want to wait.
async fn end_at_once(mut term: Signal, mut int: Signal) {
    let code = tokio::select! {
        _ = term.recv() => 143,
        _ = int.recv() => 130,
    };
    std::process::exit(code);
}
