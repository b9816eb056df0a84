//! The HTTP API: one function builds the routes, and every fault becomes a response.

mod chat;
mod completions;
pub mod error;
mod fields;
pub mod generation;
mod guard;
mod messages;
mod plain;
mod written;

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::BodyExt;
use model::tokenizer::Tokenizer;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::backend::ModelInfo;
use crate::grammar::Grammars;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::scheduler::Scheduler;
use error::ApiError;
use fields::Fields;
use generation::Defaults;
pub use guard::{Client, Guard, Peer};

/// Bytes beyond the limit that are read and thrown away.
const MOST_DISCARDED: usize = 8 << 20;

/// Texts that are turned into tokens, or back, at once for whoever only asks for that.
static ENCODINGS: Semaphore = Semaphore::const_new(2);

/// Bodies above this many bytes are read as JSON on a thread of their own, a few at a time.
const LARGE_BODY: usize = 256 << 10;
static LARGE_BODIES: Semaphore = Semaphore::const_new(2);

/// What a request may cost.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a body.
    pub body: usize,
    /// How long a body may take to arrive.
    pub body_time: Duration,
    /// Answers that may wait.
    pub waiting: usize,
    /// Answers to one prompt, `n`.
    pub choices: usize,
    /// From a request's arrival to the end of its answer; zero: no limit.
    pub time: Duration,
    /// Silence in an event stream before a comment.
    pub keep_alive: Duration,
    /// Connections at once.
    pub connections: usize,
    /// Running answers may take so much longer when the server stops.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body: 16 << 20,
            body_time: Duration::from_secs(30),
            waiting: 64,
            choices: 16,
            time: Duration::ZERO,
            keep_alive: Duration::from_secs(10),
            connections: 1024,
            grace: Duration::from_secs(30),
        }
    }
}

/// What all requests share.
pub struct Shared {
    /// The model.
    pub model: ModelInfo,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// What holds where a request says nothing.
    pub defaults: Defaults,
    /// What it may cost.
    pub limits: Limits,
    /// Who answers.
    pub scheduler: Scheduler,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Who may ask; `None`: everybody.
    pub keys: Option<Arc<Keys>>,
    /// Which hosts and pages may ask.
    pub guard: Guard,
    /// Made when first needed.
    pub grammars: OnceLock<Result<Grammars, String>>,
}

/// A handle on what all requests share.
#[derive(Clone)]
pub struct App(Arc<Shared>);

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl App {
    /// For the routes.
    pub fn new(shared: Shared) -> App {
        App(Arc::new(shared))
    }

    /// Whether a model of that name is served, and whether its name says that it thinks.
    ///
    /// # Errors
    /// 404.
    pub fn known_model(&self, name: &str) -> Result<Option<bool>, ApiError> {
        if name == self.model.id {
            return Ok(None);
        }
        if name.strip_suffix(plain::THINKING) == Some(&self.model.id) {
            return Ok(Some(true));
        }
        let message = format!("there is no model {name:?} here; /v1/models lists what there is");
        let message = message.chars().take(400).collect::<String>();
        Err(ApiError {
            param: Some("model".to_owned()),
            ..ApiError::new(StatusCode::NOT_FOUND, message).code("model_not_found")
        })
    }

    /// The name in a request, or the only one, and whether it says that the model thinks.
    fn model_name(&self, request: &Fields<'_>) -> Result<(String, Option<bool>), ApiError> {
        let name = request.text("model")?.filter(|name| !name.is_empty()).unwrap_or(&self.model.id);
        Ok((name.to_owned(), self.known_model(name)?))
    }
}

/// Routes beside the page's files, as requests to them are counted.
const ROUTES: [&str; 11] = [
    "/health",
    "/ready",
    "/openapi.json",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/{*id}",
    "/tokenize",
    "/detokenize",
    "/metrics",
    "/pond",
];

/// All routes.
pub fn routes(app: App) -> Router {
    let mut open = Router::new()
        .route("/health", get(plain::health))
        .route("/ready", get(plain::ready))
        .route("/openapi.json", get(async || plain::file("application/json", plain::OPENAPI)));
    for path in ROUTES.into_iter().chain(plain::FILES.map(|(path, ..)| path)) {
        app.metrics.route(path);
    }
    for (path, kind, text) in plain::FILES {
        open = open.route(path, get(async move || plain::file(kind, text)));
    }
    let keyed = Router::new()
        .route("/v1/chat/completions", post(chat_completions))
        .route("/v1/completions", post(completions))
        .route("/v1/models", get(plain::models))
        .route("/v1/models/{*id}", get(plain::one_model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/metrics", get(plain::metrics))
        .route("/pond", get(plain::pond))
        .layer(axum::middleware::from_fn_with_state(app.clone(), guard::with_key));
    let guard = &app.guard;
    open.merge(keyed)
        .fallback(async |request: Request| {
            let message = format!("there is nothing at {}", shortened(request.uri().path()));
            ApiError::new(StatusCode::NOT_FOUND, message).code("not_found")
        })
        .method_not_allowed_fallback(async |request: Request| {
            let message = format!("{} does not take {}", shortened(request.uri().path()), request.method());
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
        })
        .layer(guard.cors())
        .layer(axum::middleware::from_fn_with_state(app.clone(), guard::outside))
        .with_state(app)
}

fn shortened(text: &str) -> String {
    text.chars().take(200).collect()
}

async fn chat_completions(
    State(app): State<App>,
    Extension(Client(client)): Extension<Client>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = body(&app, request, Some(&client)).await?;
    chat::answer(app, client, body).await
}

async fn completions(
    State(app): State<App>,
    Extension(Client(client)): Extension<Client>,
    request: Request,
) -> Result<Response, ApiError> {
    let body = body(&app, request, Some(&client)).await?;
    completions::answer(app, client, body).await
}

async fn tokenize(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let body = body(&app, request, None).await?;
    let _turn = ENCODINGS.acquire().await.map_err(|_| chat::internal())?;
    let work = tokio::task::spawn_blocking(move || plain::tokenize(&app, &body));
    let found = work.await.map_err(|_| chat::internal())??;
    Ok(axum::Json(found).into_response())
}

async fn detokenize(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let body = body(&app, request, None).await?;
    let _turn = ENCODINGS.acquire().await.map_err(|_| chat::internal())?;
    // The body is dropped there, too.
    let work = tokio::task::spawn_blocking(move || plain::detokenize(&app, &body));
    let found = work.await.map_err(|_| chat::internal())??;
    Ok(axum::Json(found).into_response())
}

/// The body as JSON, whatever type the client gives it. If that client wants an answer, the work is done only if there may be one.
async fn body(app: &App, request: Request, client: Option<&str>) -> Result<Value, ApiError> {
    let limit = app.limits.body;
    let collected = timeout(app.limits.body_time, collect(request.into_body(), limit)).await;
    let bytes = match collected {
        Err(_) => {
            let message = "the body did not arrive in time; is Content-Length right?";
            return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, message).code("body_timeout"));
        }
        Ok(Err(_)) => {
            let message = "the body ended too soon; is Content-Length right?";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, message).code("incomplete_body"));
        }
        Ok(Ok(None)) => {
            let message = format!("the body is too large: at most {limit} bytes are taken");
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).code("body_too_large"));
        }
        Ok(Ok(Some(bytes))) => bytes,
    };
    if let Some(client) = client {
        app.scheduler.would_take(client)?;
    }
    let parsed = if bytes.len() <= LARGE_BODY {
        serde_json::from_slice(&bytes)
    } else {
        let _turn = LARGE_BODIES.acquire().await.map_err(|_| chat::internal())?;
        let parse = tokio::task::spawn_blocking(move || serde_json::from_slice(&bytes));
        parse.await.map_err(|_| chat::internal())?
    };
    parsed.map_err(|error: serde_json::Error| {
        ApiError::new(StatusCode::BAD_REQUEST, format!("the body is not JSON: {error}")).code("invalid_json")
    })
}

/// All bytes of a body, or nothing if there are more than `limit`. Some more are read even so: a client that is still sending when the
/// connection closes may never see the answer.
async fn collect(mut body: Body, limit: usize) -> Result<Option<Vec<u8>>, axum::Error> {
    let mut bytes = Vec::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        length += data.len();
        if length <= limit {
            bytes.extend_from_slice(&data);
        } else {
            bytes = Vec::new();
            if length > limit + MOST_DISCARDED {
                break;
            }
        }
    }
    Ok((length <= limit).then_some(bytes))
}

#[cfg(test)]
mod tests;
