//! `/v1/completions`: plain text goes on.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use model::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::App;
use super::chat::internal;
use super::error::ApiError;
use super::fields::Fields;
use super::generation::{Generation, Wanted, submit};
use super::written::{Head, Style, collect, stream};
use crate::answer::{Piece, Shape};
use crate::choose::LogProb;
use crate::scheduler::{Done, EndReason, Written};

const KIND: &str = "text_completion";
/// Prompts of one request at most.
const MOST_PROMPTS: usize = 256;
/// OpenAI's limit for this older form.
const MOST_LOGPROBS: i64 = 20;

/// Continues the prompts.
///
/// # Errors
/// As for chats.
pub async fn answer(app: App, client: Arc<str>, body: Value) -> Result<Response, ApiError> {
    let parsed = app.clone();
    let work = tokio::task::spawn_blocking(move || {
        let request = Fields::of(&body, "")?;
        let (name, _) = parsed.model_name(&request)?;
        let (generation, echo) = read(&parsed, &request)?;
        let prompts = prompts(&parsed, &request)?;
        let echoes = match echo {
            true => prompts.iter().map(|(_, text)| text.clone()).collect(),
            false => vec![String::new(); prompts.len()],
        };
        let wanted: Vec<Wanted> = prompts
            .into_iter()
            .map(|(prompt, _)| Wanted { prompt: prompt.into(), shape: Shape::Plain, form: None })
            .collect();
        let updates = submit(&parsed, &client, &wanted, &generation)?;
        Ok::<_, ApiError>((Head::new("cmpl", name), generation, echoes, updates))
    });
    let (head, generation, echoes, updates) = work.await.map_err(|_| internal())??;
    let n = generation.n;
    let answers = echoes.len() * n;
    if generation.stream {
        let style = Parts { offsets: echoes.iter().flat_map(|e| vec![e.chars().count(); n]).collect(), echoes, n };
        return Ok(stream(&app, head, style, updates, generation, answers));
    }
    let (found, usage) = collect(updates, answers, n).await?;
    let choices = found.into_iter().enumerate().map(|(index, answer)| {
        let echo = &echoes[index / n];
        let text: String = echo.chars().chain(answer.pieces.iter().flat_map(|piece| text(piece).chars())).collect();
        let mut offset = echo.chars().count();
        let logprobs = generation.logprobs.map(|_| logprobs(&app.tokenizer, &answer.logprobs, &mut offset));
        choice(index, &text, logprobs, Some(answer.reason))
    });
    let mut whole = head.object(KIND, choices.collect());
    whole["usage"] = usage.json();
    Ok(axum::Json(whole).into_response())
}

fn read(app: &App, request: &Fields<'_>) -> Result<(Generation, bool), ApiError> {
    let mut generation = Generation::read(app, request)?;
    generation.logprobs = request.whole("logprobs", 0, MOST_LOGPROBS)?.map(|top| top as usize);
    if request.get("suffix").is_some() {
        return Err(ApiError::unsupported("suffix", "suffix is not supported: this model only writes on"));
    }
    if request.whole("best_of", 1, i64::MAX)?.is_some_and(|best| best > generation.n as i64) {
        return Err(ApiError::unsupported("best_of", "best_of above n is not supported; ask for more answers with n"));
    }
    let echo = request.switch("echo")?.unwrap_or(false);
    if echo && generation.logprobs.is_some() {
        return Err(ApiError::unsupported("echo", "echo together with logprobs is not supported: prompts have none"));
    }
    Ok((generation, echo))
}

/// Each prompt as tokens and as text.
fn prompts(app: &App, request: &Fields<'_>) -> Result<Vec<(Vec<u32>, String)>, ApiError> {
    let expected = "a string, a list of strings, a list of tokens or a list of such lists";
    let value = request.get("prompt").ok_or_else(|| request.missing("prompt", expected))?;
    let wrong = || request.wrong("prompt", expected);
    let token = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let tokens = |list: &[Value]| list.iter().map(token).collect::<Option<Vec<u32>>>();
    let prompts = match value {
        Value::String(text) => vec![of_text(app, text)?],
        Value::Array(list) => match list.first() {
            None => return Err(wrong()),
            Some(Value::Number(_)) => vec![of_tokens(app, tokens(list).ok_or_else(wrong)?)?],
            Some(_) => {
                if list.len() > MOST_PROMPTS {
                    let message = format!("prompt has {} entries, at most {MOST_PROMPTS} are taken", list.len());
                    return Err(ApiError::field("prompt", message));
                }
                let one = |entry: &Value| match entry {
                    Value::String(text) => of_text(app, text),
                    Value::Array(list) => of_tokens(app, tokens(list).ok_or_else(wrong)?),
                    _ => Err(wrong()),
                };
                list.iter().map(one).collect::<Result<_, _>>()?
            }
        },
        _ => return Err(wrong()),
    };
    Ok(prompts)
}

/// Markers written out in a text are markers: whoever sends plain text writes the whole prompt.
fn of_text(app: &App, text: &str) -> Result<(Vec<u32>, String), ApiError> {
    let least = app.tokenizer.least_tokens(text.len());
    if least > app.model.max_len {
        return Err(ApiError::too_long("prompt", least, app.model.max_len, true));
    }
    let tokens = app.tokenizer.encode(text).map_err(|error| ApiError::field("prompt", error.to_string()))?;
    Ok((tokens, text.to_owned()))
}

fn of_tokens(app: &App, tokens: Vec<u32>) -> Result<(Vec<u32>, String), ApiError> {
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= app.model.vocab) {
        let message = format!("prompt has token {token}, the model has {} tokens", app.model.vocab);
        return Err(ApiError::field("prompt", message));
    }
    let text = app.tokenizer.decode(&tokens);
    Ok((tokens, text))
}

fn text(piece: &Piece) -> &str {
    match piece {
        Piece::Text(text) | Piece::Reasoning(text) => text,
        // Plain text has no calls.
        Piece::Call { .. } | Piece::Arguments { .. } => "",
    }
}

/// A token's name; one that is no text by itself is told by its bytes, as OpenAI does, or several would have the same name.
fn name(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| name + &format!("\\x{byte:02x}")),
    }
}

/// Characters that begin in a token.
fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|&byte| byte & 0xc0 != 0x80).count()
}

/// Probabilities in the older form: lists side by side. `offset` moves on by the characters that the tokens begin.
fn logprobs(tokenizer: &Tokenizer, found: &[LogProb], offset: &mut usize) -> Value {
    let (mut tokens, mut probabilities, mut tops, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for one in found {
        let bytes = tokenizer.token_bytes(one.id);
        offsets.push(*offset);
        *offset += characters(bytes);
        tokens.push(name(bytes));
        probabilities.push(one.logprob.max(-9999.0));
        let top: Map<String, Value> = one
            .top
            .iter()
            .map(|&(id, logprob)| (name(tokenizer.token_bytes(id)), json!(logprob.max(-9999.0))))
            .collect();
        tops.push(top);
    }
    json!({"tokens": tokens, "token_logprobs": probabilities, "top_logprobs": tops, "text_offset": offsets})
}

fn choice(index: usize, text: &str, logprobs: Option<Value>, end: Option<EndReason>) -> Value {
    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": end.map(EndReason::name)})
}

/// Answers in parts.
struct Parts {
    echoes: Vec<String>,
    offsets: Vec<usize>,
    n: usize,
}

impl Style for Parts {
    fn first(&mut self, index: usize) -> Option<Value> {
        let echo = &self.echoes[index / self.n];
        (!echo.is_empty()).then(|| choice(index, echo, None, None))
    }

    fn token(&mut self, app: &App, index: usize, written: Written) -> Vec<Value> {
        let text: String = written.pieces.iter().map(text).collect();
        let found = written.logprob.as_slice();
        if text.is_empty() && found.is_empty() {
            return Vec::new();
        }
        let logprobs = (!found.is_empty()).then(|| logprobs(&app.tokenizer, found, &mut self.offsets[index]));
        vec![choice(index, &text, logprobs, None)]
    }

    fn last(&mut self, _: &App, index: usize, done: Done) -> Vec<Value> {
        let text: String = done.pieces.iter().map(text).collect();
        vec![choice(index, &text, None, Some(done.reason))]
    }

    fn kind(&self) -> &'static str {
        KIND
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::duckling;

    #[test]
    fn offsets_count_characters_and_no_two_tokens_share_a_name() {
        let tokenizer = duckling();
        let ids = tokenizer.encode_plain("é€🦆x").expect("any text can be encoded");
        let found: Vec<LogProb> =
            ids.iter().map(|&id| LogProb { id, logprob: -1.0, top: (3..300).map(|id| (id, -2.0)).collect() }).collect();
        let mut offset = 5;
        let told = logprobs(&tokenizer, &found, &mut offset);
        assert_eq!(offset, 5 + 4);
        assert_eq!(told["top_logprobs"][0].as_object().map(Map::len), Some(297));
        for (place, &id) in ids.iter().enumerate() {
            let (bytes, token) = (tokenizer.token_bytes(id), &told["tokens"][place]);
            assert_eq!(
                token.as_str().is_some_and(|token| token.starts_with("bytes:\\x")),
                std::str::from_utf8(bytes).is_err()
            );
        }
    }
}
