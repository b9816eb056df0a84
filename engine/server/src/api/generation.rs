//! What a request says about choosing tokens, the same for chats and completions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use model::sampling::SamplingParams;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout_at;

use super::App;
use super::error::ApiError;
use super::fields::Fields;
use crate::answer::{Answer, Shape};
use crate::backend::Job;
use crate::choose::{Begin, Extras, HostChooser, Logits};
use crate::grammar::{Form, Grammar, GrammarError, Grammars};
use crate::scheduler::{Task, TaskError, Update};

/// Stop strings of a request at most, and bytes of each.
const MOST_STOPS: usize = 64;
const LONGEST_STOP: usize = 4096;
/// Answers of a request at most, over all its prompts.
const MOST_ANSWERS: usize = 128;
/// Entries of `logit_bias` at most.
const MOST_BIASES: usize = 4096;
/// Likeliest tokens that are told for each place at most.
pub const MOST_LOGPROBS: i64 = 20;

/// What holds where a request says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Defaults {
    /// How tokens are chosen; its seed does not count.
    pub sampling: SamplingParams,
    /// The seed of every request without one; `None`: another one each time.
    pub seed: Option<u64>,
    /// Answer tokens at most; 0: until the context is full.
    pub max_tokens: usize,
    /// Draft with the MTP layer.
    pub mtp: bool,
    /// Think before answering.
    pub thinking: bool,
    /// Instructions where a conversation has none.
    pub system: Option<String>,
    /// Texts that end every answer.
    pub stop: Vec<String>,
}

/// A request's wishes, checked.
#[derive(Clone, Debug)]
pub struct Generation {
    /// With the seed.
    pub sampling: SamplingParams,
    /// What the stages do not know.
    pub extras: Extras,
    /// Texts that end the answer.
    pub stops: Vec<String>,
    /// Answer tokens at most.
    pub max_tokens: usize,
    /// How many answers.
    pub n: usize,
    /// As an event stream.
    pub stream: bool,
    /// With figures at its end.
    pub include_usage: bool,
    /// With the times of tokens and the progress of reading, for the page and `duckpond chat`.
    pub timings: bool,
    /// With so many of the likeliest tokens of each place.
    pub logprobs: Option<usize>,
}

impl Generation {
    /// Reads the fields.
    ///
    /// # Errors
    /// The first that is out of its range.
    pub fn read(app: &App, request: &Fields<'_>) -> Result<Generation, ApiError> {
        let Defaults { sampling: default, seed, max_tokens, stop, .. } = &app.defaults;
        let number = |field, least, most, default: f32| {
            Ok::<_, ApiError>(request.number(field, least, most)?.map_or(default, |value| value as f32))
        };
        let seed = match request.whole("seed", i64::MIN, i64::MAX)? {
            Some(seed) => seed.cast_unsigned(),
            None => seed.unwrap_or_else(random),
        };
        let top_k = request.whole("top_k", -1, 1 << 24)?;
        let sampling = SamplingParams {
            temperature: number("temperature", 0.0, 100.0, default.temperature)?,
            // -1 is vLLM's word for all.
            top_k: top_k.map_or(default.top_k, |k| u32::try_from(k).unwrap_or(0)),
            top_p: number("top_p", 0.0, 1.0, default.top_p)?.max(1e-30),
            min_p: number("min_p", 0.0, 1.0, default.min_p)?,
            repetition_penalty: number("repetition_penalty", 0.01, 100.0, default.repetition_penalty)?,
            seed,
        };
        let extras = Extras {
            presence_penalty: number("presence_penalty", -2.0, 2.0, 0.0)?,
            frequency_penalty: number("frequency_penalty", -2.0, 2.0, 0.0)?,
            bias: bias(request, app.model.vocab)?,
        };
        let most = match request.whole("max_completion_tokens", 1, i64::from(u32::MAX))? {
            Some(most) => Some(most),
            None => request.whole("max_tokens", 1, i64::from(u32::MAX))?,
        };
        let unlimited = |n: usize| if n == 0 { usize::MAX } else { n };
        let options =
            request.get("stream_options").map(|options| Fields::of(options, "stream_options.")).transpose()?;
        let option = |name| options.map_or(Ok(None), |options| options.switch(name)).map(Option::unwrap_or_default);
        let most_choices = i64::try_from(app.limits.choices).unwrap_or(i64::MAX);
        Ok(Generation {
            sampling,
            extras,
            stops: stops(request, stop)?,
            max_tokens: most.map_or(unlimited(*max_tokens), |most| usize::try_from(most).unwrap_or(usize::MAX)),
            n: request.whole("n", 1, most_choices)?.map_or(1, |n| n as usize),
            stream: request.switch("stream")?.unwrap_or(false),
            include_usage: option("include_usage")?,
            timings: option("timings")?,
            logprobs: None,
        })
    }
}

/// The standard library's hash keys are random for each process and hasher.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

fn stops(request: &Fields<'_>, default: &[String]) -> Result<Vec<String>, ApiError> {
    let expected = "a string or a list of strings";
    let stops = match request.get("stop") {
        None => default.to_vec(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) => list
            .iter()
            .map(|stop| stop.as_str().map(str::to_owned))
            .collect::<Option<Vec<String>>>()
            .ok_or_else(|| request.wrong("stop", expected))?,
        Some(_) => return Err(request.wrong("stop", expected)),
    };
    if stops.len() > MOST_STOPS {
        return Err(ApiError::field("stop", format!("stop has {} texts, at most {MOST_STOPS} are taken", stops.len())));
    }
    match stops.iter().find(|stop| stop.is_empty() || stop.len() > LONGEST_STOP) {
        Some(stop) => {
            let message = format!("stop has a text of {} bytes, expected 1 to {LONGEST_STOP}", stop.len());
            Err(ApiError::field("stop", message))
        }
        None => Ok(stops),
    }
}

fn bias(request: &Fields<'_>, vocab: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let expected = "an object of token ids with numbers from -100 to 100";
    let Some(map) = request.parse("logit_bias", expected, Value::as_object)? else { return Ok(Vec::new()) };
    let entry = |(id, bias): (&String, &Value)| {
        let id: u32 = id.parse().ok().filter(|&id| (id as usize) < vocab)?;
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias))?;
        Some((id, bias as f32))
    };
    let biases = map.iter().take(MOST_BIASES + 1).map(entry).collect::<Option<Vec<_>>>();
    biases.filter(|biases| biases.len() <= MOST_BIASES).ok_or_else(|| {
        let message = format!(
            "logit_bias has {} entries, expected {expected} (ids below {vocab}), {MOST_BIASES} at most",
            map.len()
        );
        ApiError::field("logit_bias", message)
    })
}

/// A prompt and what may follow it.
pub struct Wanted {
    /// Tokens.
    pub prompt: Arc<[u32]>,
    /// The kind of text.
    pub shape: Shape,
    /// What it has to be, from where on, and the field that says so.
    pub form: Option<(Form, Begin, &'static str)>,
}

/// What a request's answers come through. Dropping it gives up those that have not ended.
pub struct Updates {
    updates: UnboundedReceiver<(usize, Update)>,
    /// When it is too late, and how long that is in seconds.
    deadline: Option<(Instant, u64)>,
}

impl Updates {
    /// The next one, and of which answer; once the time is up, that. The engine says so only of what it works on, and between its steps.
    pub async fn next(&mut self) -> Option<(usize, Update)> {
        let Some((at, limit)) = self.deadline else { return self.updates.recv().await };
        let late = (0, Update::Failed(TaskError::TimedOut { limit }));
        timeout_at(at.into(), self.updates.recv()).await.unwrap_or(Some(late))
    }

    /// One that has come already.
    pub fn at_hand(&mut self) -> Option<(usize, Update)> {
        self.updates.try_recv().ok()
    }
}

/// Hands answers to the scheduler: `n` for each prompt, those of a prompt side by side.
///
/// # Errors
/// Too many answers, a prompt that does not fit, a form that cannot be followed, a full queue.
pub fn submit(app: &App, client: &Arc<str>, wanted: &[Wanted], generation: &Generation) -> Result<Updates, ApiError> {
    let (prompts, n) = (wanted.len(), generation.n);
    if prompts * n > MOST_ANSWERS {
        let message = format!(
            "{prompts} prompts with {n} answers each are {} answers, at most {MOST_ANSWERS} are given to one request; ask in several",
            prompts * n
        );
        return Err(ApiError::field("prompt", message));
    }
    let (listener, updates) = unbounded_channel();
    let since = Instant::now();
    let limit = app.limits.time;
    let deadline = (limit > Duration::ZERO).then(|| (since + limit, limit.as_secs()));
    let mut tasks = Vec::with_capacity(wanted.len() * generation.n);
    for one in wanted {
        let param = if one.shape == Shape::Plain { "prompt" } else { "messages" };
        check_length(app, param, one.prompt.len())?;
        let grammar = grammar(app, one)?;
        for choice in 0..generation.n {
            let choice_index = u32::try_from(choice).unwrap_or(u32::MAX);
            let chooser = chooser(one, generation, choice_index, grammar.as_ref());
            let logprobs = generation.logprobs.map(|top| (Logits::default(), top));
            let job = Job {
                prompt: Arc::clone(&one.prompt),
                sampling: generation.sampling,
                choice_index,
                max_tokens: generation.max_tokens,
                stop_tokens: app.model.end_tokens.clone(),
                mtp: app.defaults.mtp && chooser.is_none(),
                chooser: chooser.map(|chooser| Box::new(chooser) as _),
                observer: logprobs.as_ref().map(|(logits, _)| logits.observer()),
            };
            let answer =
                Answer::new(Arc::clone(&app.tokenizer), one.shape, app.model.end_tokens.clone(), &generation.stops);
            let (client, listener, index) = (Arc::clone(client), listener.clone(), tasks.len());
            tasks.push(Task { client, job, answer, logprobs, listener, index, deadline, since });
        }
    }
    app.scheduler.submit(tasks)?;
    Ok(Updates { updates, deadline })
}

/// Refuses a prompt that leaves no position for an answer.
fn check_length(app: &App, param: &'static str, tokens: usize) -> Result<(), ApiError> {
    match tokens {
        0 => Err(ApiError::field(param, "the prompt has no tokens")),
        _ if tokens > app.model.max_len => Err(ApiError::too_long(param, tokens, app.model.max_len, false)),
        _ => Ok(()),
    }
}

/// The grammar that the answers to a prompt follow; each of them takes a copy.
fn grammar(app: &App, wanted: &Wanted) -> Result<Option<Grammar>, ApiError> {
    let Some((form, _, param)) = &wanted.form else { return Ok(None) };
    let grammar = grammars(app).and_then(|grammars| grammars.grammar(form));
    grammar.map(Some).map_err(|error| ApiError::of_grammar(param, &error))
}

fn chooser(
    wanted: &Wanted,
    generation: &Generation,
    choice_index: u32,
    grammar: Option<&Grammar>,
) -> Option<HostChooser> {
    if grammar.is_none() && generation.extras.is_empty() {
        return None;
    }
    let begin = wanted.form.as_ref().map(|(_, begin, _)| *begin);
    let (extras, grammar) = (generation.extras.clone(), grammar.cloned().zip(begin));
    Some(HostChooser::new(wanted.prompt.len(), generation.sampling, choice_index, extras, grammar))
}

/// Made when first needed: a large vocabulary takes a second.
fn grammars(app: &App) -> Result<&Grammars, GrammarError> {
    let made = app
        .grammars
        .get_or_init(|| Grammars::new(&app.tokenizer, &app.model.end_tokens).map_err(|error| error.to_string()));
    made.as_ref().map_err(|reason| GrammarError::Vocabulary { reason: reason.clone() })
}
