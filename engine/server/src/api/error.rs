//! Faults as OpenAI's clients expect them: a status and `{"error": {"message", "type", "param", "code"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::grammar::GrammarError;
use crate::scheduler::{Rejected, TaskError};

/// A request that is not answered as it was meant.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// For programs.
    pub code: Option<&'static str>,
    /// Which field of the request is at fault.
    pub param: Option<String>,
    /// For people.
    pub message: String,
    /// Seconds after which it may go better.
    pub retry_after: Option<u64>,
    /// More for programs, beside the usual fields.
    pub more: Vec<(&'static str, Value)>,
}

impl ApiError {
    /// A fault of that status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, code: None, param: None, message: message.into(), retry_after: None, more: Vec::new() }
    }

    /// A field that cannot be as it is.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A field with something that this server does not do.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { code: Some("unsupported_parameter"), ..ApiError::field(param, message) }
    }

    /// With a code for programs.
    #[must_use]
    pub fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// A prompt that does not fit.
    pub fn too_long(param: &'static str, tokens: usize, limit: usize, at_least: bool) -> ApiError {
        let found = if at_least { format!("{tokens} tokens at least") } else { format!("{tokens} tokens") };
        let message = format!("the prompt has {found}, the context holds {limit}; make it shorter");
        let more = vec![("n_prompt_tokens", json!(tokens)), ("n_ctx", json!(limit))];
        ApiError { more, ..ApiError::field(param, message).code("context_length_exceeded") }
    }

    /// The kind, in OpenAI's words.
    pub fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The object that goes out.
    pub fn body(&self) -> Value {
        let mut error = json!({
            "message": self.message, "type": self.kind(), "param": self.param, "code": self.code,
        });
        for (name, value) in &self.more {
            error[*name] = value.clone();
        }
        json!({ "error": error })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Rejected> for ApiError {
    fn from(rejected: Rejected) -> ApiError {
        let (status, code, retry_after) = match &rejected {
            Rejected::Loading { .. } => (StatusCode::SERVICE_UNAVAILABLE, "loading", Some(5)),
            Rejected::Full { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", Some(5)),
            Rejected::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping", Some(10)),
            Rejected::Broken(_) => (StatusCode::SERVICE_UNAVAILABLE, "model_failed", None),
        };
        ApiError { retry_after, ..ApiError::new(status, rejected.to_string()).code(code) }
    }
}

impl From<TaskError> for ApiError {
    fn from(error: TaskError) -> ApiError {
        let (status, code, retry_after) = match &error {
            TaskError::TimedOut { .. } => (StatusCode::GATEWAY_TIMEOUT, "timeout", None),
            TaskError::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping", Some(10)),
            TaskError::Refused(_) => (StatusCode::BAD_REQUEST, "refused", None),
            TaskError::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "engine_failed", None),
        };
        ApiError { retry_after, ..ApiError::new(status, error.to_string()).code(code) }
    }
}

impl ApiError {
    /// A grammar that a field asked for and that there cannot be.
    pub fn of_grammar(param: &str, error: &GrammarError) -> ApiError {
        match error {
            GrammarError::Vocabulary { .. } => ApiError::unsupported(param, error.to_string()),
            _ => ApiError::field(param, error.to_string()),
        }
    }
}
