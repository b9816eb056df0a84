//! `duckpond chat`: a conversation, at a terminal or from a pipe.
//!
//! Each turn encodes the whole conversation; the engine keeps the caches of the turn before, so only what is new is read. A turn
//! that fails is told and taken back, and the conversation goes on. With `--url` a server answers instead.

use std::io::{ErrorKind, IsTerminal, stdin, stdout};
use std::path::{Path, PathBuf};

use decode::Engine;
use model::chat::{ChatOptions, Message, chat_ids, encode_chat};
use model::tokenizer::Tokenizer;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::answer::{self, Answer, Ended};
use crate::cli::ChatArgs;
use crate::error::{Error, one_line, shortened};
use crate::limited::{Line, check_regular, read_line};
use crate::loaded::{self, Opened};
use crate::output::say;
use crate::prompt::{self, Origin, PromptError};
use crate::remote::Remote;
use crate::settings::{Environment, Settings};
use crate::signals;

const HELP: &str = "\
/reset         forget the conversation
/think on|off  think before answering, or not; without a word: the other way
/stats         figures of the last answer
/help          this list
/quit          end (also Ctrl-D)
Ctrl-C stops an answer. Everything else is a message; text that is pasted is one message, however many lines it has. Lines typed
while an answer is made are kept and taken after it.";

/// Bytes of a history that are read: the editor keeps a hundred lines, some of them pasted.
const LONGEST_HISTORY: u64 = 16 << 20;

/// Runs the command.
///
/// # Errors
/// A model that cannot be loaded, a terminal or pipe that fails; from a pipe, also if a message could not be answered.
pub fn run(args: &ChatArgs, settings: &Settings, environment: &Environment) -> Result<(), Error> {
    let partner = match Remote::open(&args.server)? {
        None => Partner::Here(Box::new(Here::open(settings)?)),
        Some(remote) => Partner::There(Box::new(remote)),
    };
    let thinking = settings.think;
    let mut conversation = Conversation { partner, settings, thinking, messages: Vec::new(), last: None };
    conversation.reset();
    let mut lines = Lines::open(environment)?;
    let (mut turns, mut failed) = (0, 0);
    while let Some(line) = lines.next()? {
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                turns += 1;
                failed += 1;
                say(format_args!("duckpond: {}", Error::from(error).line()));
                continue;
            }
        };
        match conversation.take(&line) {
            Said::Done => break,
            Said::Nothing => {}
            Said::Message => {
                turns += 1;
                match conversation.turn(line) {
                    Ok(Ended::PipeClosed) => break,
                    Ok(Ended::Interrupted) if signals::ends_the_program() => {
                        lines.close();
                        return Err(Error::Interrupted);
                    }
                    Ok(_) => {}
                    Err(error @ (Error::Output(_) | Error::Engine(_))) => return Err(error),
                    Err(error) => {
                        failed += 1;
                        say(format_args!("duckpond: {}", error.line()));
                    }
                }
            }
        }
    }
    lines.close();
    if failed > 0 && !lines.is_interactive() { Err(Error::Turns { failed, turns }) } else { Ok(()) }
}

/// Something typed, as a part of a message.
fn told(text: &str) -> String {
    shortened(&one_line(text))
}

/// What a line was.
enum Said {
    Message,
    Nothing,
    Done,
}

struct Conversation<'a> {
    partner: Partner,
    settings: &'a Settings,
    thinking: bool,
    messages: Vec<Message>,
    last: Option<Answer>,
}

/// Who answers.
enum Partner {
    Here(Box<Here>),
    There(Box<Remote>),
}

/// An engine in this process.
struct Here {
    engine: Engine,
    tokenizer: Tokenizer,
    end_tokens: Vec<u32>,
    max_len: usize,
    model_limit: usize,
}

impl Here {
    fn open(settings: &Settings) -> Result<Here, Error> {
        let opened = Opened::open(settings)?;
        let tokenizer = opened.tokenizer()?;
        let (model_limit, max_len) = (opened.model.dims.max_positions, opened.max_len);
        let end_tokens = opened.model.end_tokens.clone();
        Ok(Here { engine: opened.engine(settings)?, tokenizer, end_tokens, max_len, model_limit })
    }

    fn answer(&mut self, messages: &[Message], thinking: bool, settings: &Settings) -> Result<Answer, Error> {
        let said = messages.iter().map(|message| match message {
            Message::System { content } | Message::User { content } => content.len(),
            _ => 0,
        });
        loaded::check_bytes(&self.tokenizer, said.sum(), self.max_len, self.model_limit)?;
        let options = ChatOptions { thinking, ..ChatOptions::default() };
        let prompt = chat_ids(&self.tokenizer, &encode_chat(messages, &options)?)?;
        loaded::check_prompt(prompt.len(), self.max_len, self.model_limit)?;
        let request = answer::request(settings, prompt, &self.end_tokens);
        answer::stream(&mut self.engine, &self.tokenizer, &request, &settings.stop, None)
    }
}

impl Partner {
    fn answer(&mut self, messages: &[Message], thinking: bool, settings: &Settings) -> Result<Answer, Error> {
        match self {
            Partner::Here(here) => here.answer(messages, thinking, settings),
            Partner::There(remote) => remote.answer(messages, thinking, settings),
        }
    }

    /// Positions that may be used, and that the model allows.
    fn limits(&self) -> (usize, usize) {
        match self {
            Partner::Here(here) => (here.max_len, here.model_limit),
            Partner::There(remote) => (remote.max_len(), remote.max_len()),
        }
    }
}

impl Conversation<'_> {
    /// Carries out a command; a message is left to [`turn`](Self::turn).
    fn take(&mut self, line: &str) -> Said {
        let mut words = line.split_whitespace();
        let command = words.next();
        let argument =
            words.next().map(|_| line.trim().split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim()));
        match (command, argument) {
            (None, _) => {}
            (Some("/quit" | "/exit"), None) => return Said::Done,
            (Some("/help"), None) => say(HELP),
            (Some("/reset"), None) => {
                self.reset();
                say("the conversation is forgotten");
            }
            (Some("/stats"), None) => self.tell_stats(),
            (Some("/think"), None) => self.set_thinking(!self.thinking),
            (Some("/think"), Some("on")) => self.set_thinking(true),
            (Some("/think"), Some("off")) => self.set_thinking(false),
            (Some("/think"), Some(argument)) => {
                say(format_args!("/think takes on, off or nothing, but not {}", told(argument)));
            }
            (Some(word @ ("/quit" | "/exit" | "/help" | "/reset" | "/stats")), Some(argument)) => {
                say(format_args!("{word} takes nothing behind it, but there is {}", told(argument)));
            }
            (Some(word), _) if word.starts_with('/') && word[1..].chars().all(char::is_alphabetic) => {
                say(format_args!("unknown command {}; /help lists them", told(line.trim())));
            }
            _ => return Said::Message,
        }
        Said::Nothing
    }

    /// Answers a message.
    fn turn(&mut self, text: String) -> Result<Ended, Error> {
        let before = self.messages.len();
        self.messages.push(Message::User { content: text });
        let answer = match self.partner.answer(&self.messages, self.thinking, self.settings) {
            Ok(answer) => answer,
            Err(error) => {
                self.messages.truncate(before);
                return Err(error);
            }
        };
        let content = match (self.thinking, answer.reasoning_len) {
            // Cut off while it was still thinking: there is no answer, and the reasoning would be dropped anyway.
            (true, None) => String::new(),
            _ => answer.content().to_owned(),
        };
        self.messages.push(Message::Assistant { reasoning: None, content, tool_calls: Vec::new() });
        if let Some(line) = answer::ended_line(answer.ended, self.partner.limits().1) {
            say(line);
        }
        let ended = answer.ended;
        self.last = Some(answer);
        Ok(ended)
    }

    fn reset(&mut self) {
        self.messages.clear();
        self.messages.extend(self.settings.system.clone().map(|content| Message::System { content }));
        if let Partner::Here(here) = &mut self.partner {
            here.engine.reset();
        }
        self.last = None;
    }

    fn set_thinking(&mut self, on: bool) {
        self.thinking = on;
        say(if on { "thinking is on" } else { "thinking is off" });
    }

    fn tell_stats(&self) {
        let Some(answer) = &self.last else {
            return say("no answer yet");
        };
        say(answer::stats_line(&answer.stats));
        // A server draws its own seed.
        if let (Partner::Here(_), Some(line)) = (&self.partner, answer::seed_line(self.settings, answer.seed)) {
            say(line);
        }
        if self.settings.mtp || answer.stats.drafts > 0 {
            say(answer::mtp_line(&answer.stats));
        }
        let used = answer.stats.input_len + answer.stats.output_len;
        let kept = answer.stats.cached_len;
        say(format_args!(
            "context: {used} of {} positions, {kept} of them kept from the turn before",
            self.partner.limits().0
        ));
    }
}

/// Where messages come from.
enum Lines {
    Terminal { editor: Box<DefaultEditor>, history: Option<PathBuf> },
    Pipe,
}

impl Lines {
    fn open(environment: &Environment) -> Result<Lines, Error> {
        // The editor draws on standard output, which must not happen in a file.
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Ok(Lines::Pipe);
        }
        let mut editor = Box::new(DefaultEditor::new()?);
        let history = environment.state_folder().map(|folder| folder.join("history"));
        let history = history.filter(|path| match load_history(&mut editor, path) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("this conversation is not kept in the history {}: {error}", path.display());
                false
            }
        });
        say("/help lists the commands, Ctrl-D ends");
        Ok(Lines::Terminal { editor, history })
    }

    fn is_interactive(&self) -> bool {
        matches!(self, Lines::Terminal { .. })
    }

    /// The next line without its end, or why it can be no message; `None` at the end of the input.
    fn next(&mut self) -> Result<Option<Result<String, PromptError>>, Error> {
        match self {
            Lines::Pipe => next_of_pipe(),
            Lines::Terminal { editor, .. } => loop {
                match editor.readline("> ") {
                    Ok(line) => {
                        if !line.trim().is_empty() {
                            // Only fails for histories with an odd configuration.
                            let _ = editor.add_history_entry(&line);
                        }
                        // The end of what was pasted.
                        return Ok(Some(Ok(line.trim_end_matches(['\r', '\n']).to_owned())));
                    }
                    Err(ReadlineError::Interrupted) => say("Ctrl-D or /quit ends the conversation"),
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                        say("duckpond: what was typed is not valid UTF-8; the line is dropped");
                    }
                    Err(error) => return Err(error.into()),
                }
            },
        }
    }

    /// Saves the history. A failure costs no conversation.
    fn close(&mut self) {
        let Lines::Terminal { editor, history: Some(path) } = self else { return };
        let saved = match path.parent().map(std::fs::create_dir_all) {
            Some(Err(error)) => Err(error.to_string()),
            _ => editor.save_history(path).map_err(|error| error.to_string()),
        };
        if let Err(error) = saved {
            tracing::warn!("cannot save the history {}: {error}", path.display());
        }
    }
}

/// What is no regular file, too long or no text is neither read nor written over.
fn load_history(editor: &mut DefaultEditor, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    match check_regular(path, LONGEST_HISTORY) {
        Ok(()) => Ok(editor.load_history(path)?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn next_of_pipe() -> Result<Option<Result<String, PromptError>>, Error> {
    let line = read_line(&mut stdin().lock(), prompt::LONGEST).map_err(Error::Input)?;
    Ok(match line {
        Line::End => None,
        Line::TooLong => Some(Err(PromptError::TooLong { origin: Origin::Stdin })),
        Line::Whole(bytes) => Some(prompt::text(bytes, &Origin::Stdin)),
    })
}
