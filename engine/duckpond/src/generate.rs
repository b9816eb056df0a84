//! `duckpond generate`: one prompt, one answer.

use model::chat::{ChatOptions, Message, chat_ids, encode_chat};
use model::tokenizer::Tokenizer;

use crate::answer::{self, Ended};
use crate::cli::GenerateArgs;
use crate::error::Error;
use crate::loaded::Opened;
use crate::prompt;
use crate::remote::Remote;
use crate::settings::Settings;
use crate::trace::Trace;

/// Runs the command.
///
/// # Errors
/// Everything wrong with the request is told before work begins. An answer that was shown while its trace could not be
/// written is an error, too.
pub fn run(args: &GenerateArgs, settings: &Settings) -> Result<(), Error> {
    let text = prompt::read(args.prompt.as_deref(), args.file.as_deref(), args.raw)?;
    if let Some(remote) = Remote::open(&args.server)? {
        return ask(&remote, text, settings);
    }
    let opened = Opened::open(settings)?;
    let tokenizer = opened.tokenizer()?;
    opened.check_bytes(&tokenizer, text.len())?;
    let prompt = match args.raw {
        true => tokenizer.encode(&text)?,
        false => encode(&tokenizer, text, settings)?,
    };
    opened.check_prompt(prompt.len())?;
    let mut trace = match &args.trace {
        Some(path) => Some(Trace::create(path, &opened.folder, tokenizer.detokeniser())?),
        None => None,
    };
    let request = answer::request(settings, prompt, &opened.model.end_tokens);
    let model_limit = opened.model.dims.max_positions;
    let mut engine = opened.engine(settings)?;
    let answer = answer::stream(&mut engine, &tokenizer, &request, &settings.stop, trace.as_mut())?;
    answer::report(&answer, settings, model_limit);
    if let Some(trace) = trace {
        trace.finish()?;
    }
    match answer.ended {
        Ended::Interrupted => Err(Error::Interrupted),
        _ => Ok(()),
    }
}

/// Has a server answer.
fn ask(remote: &Remote, text: String, settings: &Settings) -> Result<(), Error> {
    let answer = remote.answer(&messages(text, settings), settings.think, settings)?;
    answer::report(&answer, settings, remote.max_len());
    match answer.ended {
        Ended::Interrupted => Err(Error::Interrupted),
        _ => Ok(()),
    }
}

fn messages(text: String, settings: &Settings) -> Vec<Message> {
    let system = settings.system.clone().map(|content| Message::System { content });
    system.into_iter().chain([Message::User { content: text }]).collect()
}

fn encode(tokenizer: &Tokenizer, text: String, settings: &Settings) -> Result<Vec<u32>, Error> {
    let messages = messages(text, settings);
    let options = ChatOptions { thinking: settings.think, ..ChatOptions::default() };
    Ok(chat_ids(tokenizer, &encode_chat(&messages, &options)?)?)
}
