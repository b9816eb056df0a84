//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use model::chat::template::END_THINK;
use model::chat::{ChatOptions, Message, chat_ids, encode_chat};
use serde_json::{Map, Value, json};

use super::App;
use super::error::ApiError;
use super::fields::Fields;
use super::generation::{Generation, MOST_LOGPROBS, Wanted, submit};
use super::messages::{ToolChoice, messages, tools};
use super::written::{Head, Style, chat_logprob, collect, stream, unique};
use crate::answer::{Calls, Piece, Shape};
use crate::choose::Begin;
use crate::grammar::Form;
use crate::scheduler::{Done, EndReason, Written};

const WHOLE: &str = "chat.completion";
const PART: &str = "chat.completion.chunk";

/// Answers a conversation.
///
/// # Errors
/// What is wrong with the request, or with the answer before any of it went out.
pub async fn answer(app: App, client: Arc<str>, body: Value) -> Result<Response, ApiError> {
    let (parsed, of_task) = (app.clone(), client);
    // Long conversations take a while to encode.
    let work = tokio::task::spawn_blocking(move || {
        let request = Fields::of(&body, "")?;
        let chat = Chat::read(&parsed, &request)?;
        let updates = submit(&parsed, &of_task, &[chat.wanted], &chat.generation)?;
        Ok::<_, ApiError>((chat.head, chat.generation, updates))
    });
    let (head, generation, updates) = work.await.map_err(|_| internal())??;
    let n = generation.n;
    if generation.stream {
        return Ok(stream(&app, head, Parts, updates, generation, n));
    }
    let logprobs = generation.logprobs.is_some();
    let (answers, usage) = collect(updates, n, n).await?;
    let choices = answers.into_iter().enumerate().map(|(index, answer)| {
        let found: Vec<Value> = answer.logprobs.iter().map(|found| chat_logprob(&app.tokenizer, found)).collect();
        json!({
            "index": index,
            "message": Whole::of(answer.pieces).message(),
            "logprobs": if logprobs { json!({"content": found}) } else { Value::Null },
            "finish_reason": answer.reason.name(),
        })
    });
    let mut whole = head.object(WHOLE, choices.collect());
    whole["usage"] = usage.json();
    Ok(axum::Json(whole).into_response())
}

/// A task of ours broke down.
pub fn internal() -> ApiError {
    ApiError::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, "an internal error; please report it")
}

/// A request, checked and encoded.
pub struct Chat {
    head: Head,
    generation: Generation,
    /// The prompt and what follows.
    pub wanted: Wanted,
}

impl Chat {
    /// Reads a request.
    ///
    /// # Errors
    /// The first fault.
    pub fn read(app: &App, request: &Fields<'_>) -> Result<Chat, ApiError> {
        for field in ["audio", "web_search_options"] {
            if request.get(field).is_some() {
                return Err(ApiError::unsupported(field, format!("{field} is not supported by this server")));
            }
        }
        let (name, by_model) = app.model_name(request)?;
        let mut generation = Generation::read(app, request)?;
        let top = request.whole("top_logprobs", 0, MOST_LOGPROBS)?;
        if request.switch("logprobs")?.unwrap_or(false) {
            generation.logprobs = Some(top.unwrap_or(0) as usize);
        } else if top.is_some_and(|top| top > 0) {
            return Err(ApiError::field("top_logprobs", "top_logprobs needs logprobs to be true"));
        }
        let thinking = thinking(request)?.or(by_model).unwrap_or(app.defaults.thinking);
        let wanted = wanted(app, request, thinking)?;
        Ok(Chat { head: Head::new("chatcmpl", name), generation, wanted })
    }
}

/// The prompt of a conversation and what may follow it.
fn wanted(app: &App, request: &Fields<'_>, thinking: bool) -> Result<Wanted, ApiError> {
    let mut messages = messages(request)?;
    if let Some(system) = &app.defaults.system
        && !messages.iter().any(|message| matches!(message, Message::System { .. }))
    {
        messages.insert(0, Message::System { content: system.clone() });
    }
    let (tools, choice) = tools(request)?;
    let (schema, form) = response_format(request)?;
    if form.is_some() && choice == ToolChoice::Auto {
        let message = "response_format holds the whole answer to its form, so that no tool could be called: with tools it needs a \
            tool_choice of none, required or a named tool";
        return Err(ApiError::unsupported("response_format", message));
    }
    let several = request.switch("parallel_tool_calls")?.unwrap_or(true);
    let called = |tool: &Value| {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        (name, function.get("parameters").cloned().unwrap_or(Value::Null))
    };
    let calls = match &choice {
        ToolChoice::None | ToolChoice::Auto => None,
        ToolChoice::Required => Some(Form::Calls { tools: tools.iter().map(called).collect(), several }),
        ToolChoice::Named(place) => Some(Form::Calls { tools: vec![called(&tools[*place])], several: false }),
    };
    let begin = match thinking {
        false => Begin::AtOnce,
        true => Begin::After(app.tokenizer.marker(END_THINK).ok_or_else(|| {
            ApiError::field("messages", "the model's tokenizer has no mark for the end of reasoning")
        })?),
    };
    let form = match (calls, form) {
        (Some(calls), _) => Some((calls, begin, "tools")),
        (None, Some(form)) => Some((form, begin, "response_format")),
        (None, None) => None,
    };
    let shape = Shape::Turn {
        thinking,
        calls: match (tools.is_empty(), several) {
            (true, _) => Calls::None,
            (false, false) => Calls::One,
            (false, true) => Calls::Several,
        },
    };
    check_bytes(app, request, &messages)?;
    let options = ChatOptions { thinking, tools, response_format: schema };
    let fault = |error: model::chat::ChatError| ApiError::field("messages", error.to_string());
    let prompt = chat_ids(&app.tokenizer, &encode_chat(&messages, &options).map_err(fault)?).map_err(fault)?;
    Ok(Wanted { prompt: prompt.into(), shape, form })
}

/// Refuses what is far too long before it is encoded.
fn check_bytes(app: &App, request: &Fields<'_>, messages: &[Message]) -> Result<(), ApiError> {
    let extra: usize =
        ["tools", "response_format"].into_iter().filter_map(|field| request.get(field)).map(text_bytes).sum();
    let bytes: usize = messages
        .iter()
        .map(|message| match message {
            Message::System { content }
            | Message::User { content }
            | Message::Developer { content, .. }
            | Message::Tool { content } => content.len(),
            // Earlier reasoning is dropped from the prompt.
            Message::Assistant { content, tool_calls, .. } => {
                content.len()
                    + tool_calls.iter().flat_map(|call| call.arguments.values()).map(text_bytes).sum::<usize>()
            }
        })
        .sum();
    for (bytes, field) in [(bytes, "messages"), (extra, "tools")] {
        let tokens = app.tokenizer.least_tokens(bytes);
        if tokens > app.model.max_len {
            return Err(ApiError::too_long(field, tokens, app.model.max_len, true));
        }
    }
    Ok(())
}

/// Bytes of all texts in a value: what of it surely gets into the prompt.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(text_bytes).sum(),
        Value::Object(fields) => fields.values().map(text_bytes).sum(),
        _ => 0,
    }
}

/// Whether the model shall think, in all the ways that clients say it; the first one that is there counts:
/// `thinking: {type: enabled | disabled}` (DeepSeek), `chat_template_kwargs: {thinking | enable_thinking}` (vLLM, SGLang),
/// `enable_thinking` (Qwen), `reasoning: {enabled, effort}` (OpenRouter), `reasoning_effort` (OpenAI; `none` is no).
fn thinking(request: &Fields<'_>) -> Result<Option<bool>, ApiError> {
    match request.get("thinking") {
        None => {}
        Some(Value::Bool(think)) => return Ok(Some(*think)),
        Some(value) => {
            let fields = Fields::of(value, "thinking.")?;
            return match fields.text("type")? {
                Some("enabled" | "adaptive") => Ok(Some(true)),
                Some("disabled") => Ok(Some(false)),
                _ => Err(fields.wrong("type", "enabled or disabled")),
            };
        }
    }
    if let Some(value) = request.get("chat_template_kwargs") {
        let fields = Fields::of(value, "chat_template_kwargs.")?;
        for name in ["thinking", "enable_thinking"] {
            if let Some(think) = fields.switch(name)? {
                return Ok(Some(think));
            }
        }
    }
    if let Some(think) = request.switch("enable_thinking")? {
        return Ok(Some(think));
    }
    if let Some(value) = request.get("reasoning") {
        let fields = Fields::of(value, "reasoning.")?;
        if let Some(think) = fields.switch("enabled")? {
            return Ok(Some(think));
        }
        if let Some(think) = effort(&fields, "effort")? {
            return Ok(Some(think));
        }
    }
    effort(request, "reasoning_effort")
}

fn effort(fields: &Fields<'_>, field: &str) -> Result<Option<bool>, ApiError> {
    fields.parse(field, "none, minimal, low, medium, high or xhigh", |value| match value.as_str()? {
        "none" => Some(false),
        "minimal" | "low" | "medium" | "high" | "xhigh" | "max" => Some(true),
        _ => None,
    })
}

/// The schema for the prompt, and the form for the answer.
fn response_format(request: &Fields<'_>) -> Result<(Option<Value>, Option<Form>), ApiError> {
    let Some(value) = request.get("response_format") else { return Ok((None, None)) };
    let fields = Fields::of(value, "response_format.")?;
    match fields.text("type")? {
        Some("text") => Ok((None, None)),
        Some("json_object") => Ok((None, Some(Form::JsonObject))),
        Some("json_schema") => {
            let expected = "an object with a schema";
            let inner = fields.get("json_schema").ok_or_else(|| fields.missing("json_schema", expected))?;
            let inner = Fields::of(inner, "response_format.json_schema.")?;
            let schema = inner.get("schema").ok_or_else(|| inner.missing("schema", "a JSON schema"))?;
            if !schema.is_object() {
                return Err(inner.wrong("schema", "a JSON schema"));
            }
            Ok((Some(schema.clone()), Some(Form::Schema(schema.clone()))))
        }
        _ => Err(fields.wrong("type", "text, json_object or json_schema")),
    }
}

/// A whole answer.
#[derive(Default)]
struct Whole {
    reasoning: Option<String>,
    text: String,
    calls: Vec<(String, String)>,
}

impl Whole {
    fn of(pieces: Vec<Piece>) -> Whole {
        let mut whole = Whole::default();
        for piece in pieces {
            match piece {
                Piece::Reasoning(more) => whole.reasoning.get_or_insert_default().push_str(&more),
                Piece::Text(more) => whole.text.push_str(&more),
                Piece::Call { name, .. } => whole.calls.push((name, String::new())),
                Piece::Arguments { json, .. } => {
                    if let Some((_, arguments)) = whole.calls.last_mut() {
                        arguments.push_str(&json);
                    }
                }
            }
        }
        whole
    }

    fn message(self) -> Value {
        let mut message = Map::new();
        message.insert("role".into(), json!("assistant"));
        let has_calls = !self.calls.is_empty();
        let text = if has_calls && self.text.is_empty() { Value::Null } else { Value::from(self.text) };
        message.insert("content".into(), text);
        message.insert("refusal".into(), Value::Null);
        if let Some(reasoning) = self.reasoning {
            message.insert("reasoning_content".into(), reasoning.into());
        }
        if has_calls {
            let calls = self.calls.into_iter().map(|(name, arguments)| {
                json!({
                    "id": format!("call_{}", unique()), "type": "function",
                    "function": {"name": name, "arguments": arguments},
                })
            });
            message.insert("tool_calls".into(), calls.collect());
        }
        message.into()
    }
}

/// An answer in parts.
struct Parts;

fn part(index: usize, delta: Value, end: Option<EndReason>) -> Value {
    json!({"index": index, "delta": delta, "logprobs": Value::Null, "finish_reason": end.map(EndReason::name)})
}

fn delta(piece: Piece) -> Value {
    match piece {
        Piece::Reasoning(text) => json!({"reasoning_content": text}),
        Piece::Text(text) => json!({"content": text}),
        Piece::Call { index, name } => json!({"tool_calls": [{
            "index": index, "id": format!("call_{}", unique()), "type": "function",
            "function": {"name": name, "arguments": ""},
        }]}),
        Piece::Arguments { index, json } => json!({"tool_calls": [{"index": index, "function": {"arguments": json}}]}),
    }
}

impl Style for Parts {
    fn first(&mut self, index: usize) -> Option<Value> {
        Some(part(index, json!({"role": "assistant", "content": ""}), None))
    }

    fn token(&mut self, app: &App, index: usize, written: Written) -> Vec<Value> {
        let mut parts: Vec<Value> = written.pieces.into_iter().map(|piece| part(index, delta(piece), None)).collect();
        if let Some(logprob) = &written.logprob {
            if parts.is_empty() {
                // The token's text is held back, but not the token.
                parts.push(part(index, json!({}), None));
            }
            parts[0]["logprobs"] = json!({"content": [chat_logprob(&app.tokenizer, logprob)]});
        }
        parts
    }

    fn last(&mut self, _: &App, index: usize, done: Done) -> Vec<Value> {
        let mut parts: Vec<Value> = done.pieces.into_iter().map(|piece| part(index, delta(piece), None)).collect();
        parts.push(part(index, json!({}), Some(done.reason)));
        parts
    }

    fn kind(&self) -> &'static str {
        PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_is_chosen_in_every_clients_way() {
        for (request, expected) in [
            (json!({}), None),
            (json!({"thinking": {"type": "enabled"}}), Some(true)),
            (json!({"thinking": {"type": "disabled", "budget_tokens": 1}}), Some(false)),
            (json!({"thinking": true}), Some(true)),
            (json!({"chat_template_kwargs": {"thinking": true}}), Some(true)),
            (json!({"chat_template_kwargs": {"enable_thinking": false}}), Some(false)),
            (json!({"chat_template_kwargs": {"other": 1}, "enable_thinking": true}), Some(true)),
            (json!({"enable_thinking": false}), Some(false)),
            (json!({"reasoning": {"effort": "high"}}), Some(true)),
            (json!({"reasoning": {"enabled": false}}), Some(false)),
            (json!({"reasoning_effort": "none"}), Some(false)),
            (json!({"reasoning_effort": "low"}), Some(true)),
        ] {
            let fields = Fields::of(&request, "").expect("an object");
            assert_eq!(thinking(&fields).expect("sound"), expected, "{request}");
        }
        for wrong in
            [json!({"thinking": {"type": "maybe"}}), json!({"enable_thinking": "yes"}), json!({"reasoning_effort": 7})]
        {
            assert!(thinking(&Fields::of(&wrong, "").expect("an object")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_answer_of_calls_has_no_text() {
        let whole = Whole::of(vec![
            Piece::Call { index: 0, name: "f".into() },
            Piece::Arguments { index: 0, json: "{\"a\": ".into() },
            Piece::Arguments { index: 0, json: "1}".into() },
        ]);
        let message = whole.message();
        assert_eq!(message["content"], Value::Null);
        assert_eq!(message["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{\"a\": 1}"}));
        assert_eq!(Whole::default().message()["content"], "");
    }
}
