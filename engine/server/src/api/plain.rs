//! Everything that is not an answer: models, tokens, health, metrics, the pond, the page.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::App;
use super::chat::Chat;
use super::error::ApiError;
use super::fields::Fields;
use super::guard::is_trusted;
use crate::metrics;

/// Behind a model's name: it thinks, for clients that can only choose a name.
pub const THINKING: &str = ":thinking";

/// Tokens that are turned into text at once, or as many as the model takes.
const MOST_DETOKENIZED: usize = 1 << 17;

fn model(app: &App, id: &str) -> Value {
    json!({
        "id": id, "object": "model", "created": app.model.created, "owned_by": "duckpond",
        "max_model_len": app.model.max_len,
    })
}

/// `/v1/models`.
pub async fn models(State(app): State<App>) -> Response {
    let id = &app.model.id;
    let data = [model(&app, id), model(&app, &format!("{id}{THINKING}"))];
    axum::Json(json!({"object": "list", "data": data})).into_response()
}

/// `/v1/models/{id}`.
pub async fn one_model(State(app): State<App>, Path(id): Path<String>) -> Result<Response, ApiError> {
    app.known_model(&id)?;
    Ok(axum::Json(model(&app, &id)).into_response())
}

/// `/tokenize`: the tokens of `prompt` (plain text), or of the prompt that a chat request makes.
///
/// # Errors
/// What is wrong with the request.
pub fn tokenize(app: &App, body: &Value) -> Result<Value, ApiError> {
    let request = Fields::of(body, "")?;
    let text = match request.text("prompt")? {
        Some(text) => Some(text),
        None => request.text("content")?,
    };
    let tokens = match (text, request.get("messages")) {
        (Some(text), _) => {
            // What no request could use is not worth the time and memory.
            let least = app.tokenizer.least_tokens(text.len());
            if least > app.model.max_len {
                return Err(ApiError::too_long("prompt", least, app.model.max_len, true));
            }
            app.tokenizer.encode(text).map_err(|error| ApiError::field("prompt", error.to_string()))?
        }
        (None, Some(_)) => Chat::read(app, &request)?.wanted.prompt.to_vec(),
        (None, None) => return Err(request.missing("prompt", "a string, or messages")),
    };
    Ok(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": app.model.max_len}))
}

/// `/detokenize`: the text of `tokens`.
///
/// # Errors
/// What is wrong with the request.
pub fn detokenize(app: &App, body: &Value) -> Result<Value, ApiError> {
    let request = Fields::of(body, "")?;
    let expected = "a list of token ids";
    let list = request.list("tokens")?.ok_or_else(|| request.missing("tokens", expected))?;
    if list.len() > MOST_DETOKENIZED.max(app.model.max_len) {
        let message = format!("at most {} tokens are taken", MOST_DETOKENIZED.max(app.model.max_len));
        return Err(ApiError::field("tokens", message));
    }
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let tokens = list.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(|| request.wrong("tokens", expected))?;
    Ok(json!({"prompt": app.tokenizer.decode(&tokens)}))
}

/// Why there is no engine. It may name files of this machine, which are nobody's business who has no key.
fn for_caller(app: &App, headers: &HeaderMap, reason: String) -> String {
    match is_trusted(app, headers) {
        true => reason,
        false => "the model failed; the server's log, or this question with an API key, tells why".to_owned(),
    }
}

/// `/health`: the process answers, and the engine has not broken down.
pub async fn health(State(app): State<App>, headers: HeaderMap) -> Response {
    match app.scheduler.load().broken {
        None => axum::Json(json!({"status": "ok"})).into_response(),
        Some(reason) => {
            let body = json!({"status": "failed", "reason": for_caller(&app, &headers, reason)});
            (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
        }
    }
}

/// `/ready`: requests can be answered.
pub async fn ready(State(app): State<App>, headers: HeaderMap) -> Response {
    let load = app.scheduler.load();
    let status = match (&load.broken, load.stopping, load.ready) {
        (Some(_), ..) => "failed",
        (None, true, _) => "stopping",
        (None, false, true) => "ready",
        (None, false, false) => "loading",
    };
    let mut body = json!({
        "status": status, "percent": load.percent, "waiting": load.waiting, "running": load.running,
    });
    if let Some(reason) = load.broken {
        body["reason"] = for_caller(&app, &headers, reason).into();
    }
    let code = if status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, axum::Json(body)).into_response()
}

/// `/metrics`.
pub async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics.text(&app.scheduler.load(), &app.scheduler.pond());
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

/// `/pond`: ports and ducks, for the page.
pub async fn pond(State(app): State<App>) -> Response {
    let load = app.scheduler.load();
    let body = json!({
        "model": {"id": app.model.id, "description": app.model.description, "max_len": app.model.max_len},
        "load": {
            "ready": load.ready, "percent": load.percent, "waiting": load.waiting, "running": load.running,
            "stopping": load.stopping, "broken": load.broken,
        },
        "pond": app.scheduler.pond(),
    });
    axum::Json(body).into_response()
}

/// Files of the page: path, content type, text.
pub const FILES: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("../../page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../../page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../../page/page.js")),
    ("/words.js", "text/javascript; charset=utf-8", include_str!("../../page/words.js")),
];
/// The description of the API.
pub const OPENAPI: &str = include_str!("../../openapi.json");

/// A file of the page. Nothing that the page shows can bring code or send anything elsewhere.
pub fn file(kind: &'static str, text: &'static str) -> Response {
    const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
        img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    let mut response = text.into_response();
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
