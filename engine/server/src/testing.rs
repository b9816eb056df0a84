//! For tests of this crate: Duckling's tokenizer, and a server whose engine does as it is told.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use model::tokenizer::Tokenizer;

use crate::api::generation::Defaults;
use crate::api::{App, Guard, Limits, Shared};
use crate::backend::{Backend, BoxError, Event, Failure, Finish, Job, ModelInfo, Outcome, PondSource, Stats};
use crate::keys::Keys;
use crate::pond::PondStatus;
use crate::scheduler::{Loading, Scheduler};

/// The tokenizer of the model that ships with the repository.
pub(crate) fn duckling() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let open = || {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/duckling");
        Arc::new(Tokenizer::open(&folder).expect("it ships with the code"))
    };
    Arc::clone(TOKENIZER.get_or_init(open))
}

/// Reads a prompt for ever, and tells of it every few milliseconds until nobody wants to hear more.
struct Reader;

impl PondSource for Reader {
    fn status(&self) -> PondStatus {
        PondStatus::default()
    }
}

impl Backend for Reader {
    fn generate(&mut self, _: Job, on_event: &mut dyn FnMut(Event) -> ControlFlow<()>) -> Result<Outcome, Failure> {
        while on_event(Event::Prefill { done: 1, total: 1000 }).is_continue() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Outcome { finish: Finish::Cancelled, stats: Stats::default() })
    }

    fn pond(&self) -> Arc<dyn PondSource> {
        Arc::new(Reader)
    }
}

/// A server whose engine is in the midst of every prompt for ever.
pub(crate) fn reading(limits: Limits) -> App {
    let app = app(limits, None, |_| Ok(Reader));
    while !app.scheduler.load().ready {
        std::thread::sleep(Duration::from_millis(1));
    }
    app
}

/// A server whose model could not be loaded.
pub(crate) fn broken(reason: &'static str, keys: Option<Arc<Keys>>) -> App {
    let app = app(Limits::default(), keys, move |_| Err(reason.into()));
    while app.scheduler.load().broken.is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    app
}

fn app(
    limits: Limits,
    keys: Option<Arc<Keys>>,
    load: impl FnOnce(&Loading<'_>) -> Result<Reader, BoxError> + Send + 'static,
) -> App {
    let metrics = Arc::default();
    let (scheduler, _) =
        Scheduler::start(load, limits.waiting, Arc::clone(&metrics), Arc::default()).expect("a thread");
    let tokenizer = duckling();
    let model = ModelInfo {
        id: "duckling".into(),
        created: 0,
        max_len: 1000,
        end_tokens: vec![1],
        vocab: tokenizer.vocab_size(),
        description: String::new(),
    };
    App::new(Shared {
        model,
        tokenizer,
        defaults: Defaults::default(),
        limits,
        scheduler,
        metrics,
        keys,
        guard: Guard::default(),
        grammars: OnceLock::new(),
    })
}
