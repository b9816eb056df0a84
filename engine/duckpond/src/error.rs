//! Everything that can end a command, its exit code, and how it is told: one line, `duckpond: what: why`.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use server::client::ClientError;
use server::serve::ServeError;

use crate::model_folder::NotFound;
use crate::prompt::PromptError;
use crate::settings::SettingsError;
use crate::signals;
use crate::trace::TraceError;

/// Exit code of a command that did what it was asked for.
pub const DONE: u8 = 0;
/// Exit code of a failure.
pub const FAILURE: u8 = 1;
/// Exit code of a request that cannot be carried out as it was made.
pub const USAGE: u8 = 2;

/// Why a command ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line makes no sense.
    #[error("{message}; see duckpond --help")]
    CommandLine {
        /// What clap says.
        message: String,
    },
    /// A setting.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The prompt.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The prompt does not fit.
    #[error("the prompt has {tokens} tokens, but {}; make it shorter{}", limit_text(*limit, *model_limit), raise_text(*limit, *model_limit))]
    PromptTooLong {
        /// Its length.
        tokens: usize,
        /// Positions allowed.
        limit: usize,
        /// Positions that the model allows.
        model_limit: usize,
    },
    /// The prompt does not fit, and so clearly that nobody counted its tokens.
    #[error("the prompt has {bytes} bytes, which are {tokens} tokens at least, but {}; make it shorter{}", limit_text(*limit, *model_limit), raise_text(*limit, *model_limit))]
    PromptFarTooLong {
        /// Its bytes.
        bytes: usize,
        /// The fewest tokens that these can be.
        tokens: usize,
        /// Positions allowed.
        limit: usize,
        /// Positions that the model allows.
        model_limit: usize,
    },
    /// More ducks than units.
    #[error("ducks is {found}, but a layer of this model has {units} units: give 1 to {units}")]
    Ducks {
        /// Ducks asked for.
        found: usize,
        /// Units of a layer.
        units: usize,
    },
    /// More positions than the model allows.
    #[error("max_len is {found}, but the model allows {model_limit} positions: give 0 to {model_limit}")]
    MaxLen {
        /// Positions asked for.
        found: usize,
        /// The model's limit.
        model_limit: usize,
    },
    /// Lengths for `bench` that cannot be measured.
    #[error("{what} is {found}, expected {allowed}")]
    Length {
        /// The flag.
        what: &'static str,
        /// Its value.
        found: usize,
        /// What would do.
        allowed: String,
    },
    /// Drafts without an MTP layer.
    #[error("--mtp needs an MTP layer, which the checkpoint {} does not have", folder.display())]
    NoMtp {
        /// The checkpoint folder.
        folder: PathBuf,
    },
    /// No checkpoint folder.
    #[error(transparent)]
    NoModel(#[from] NotFound),
    /// The checkpoint.
    #[error("cannot load the model")]
    Load(#[from] model::arch::LoadError),
    /// Several faults of a checkpoint, which were listed.
    #[error("the checkpoint {} cannot be run: {faults}", folder.display())]
    Faulty {
        /// The checkpoint folder.
        folder: PathBuf,
        /// How many.
        faults: String,
    },
    /// A conversion. Most of its refusals say what to do.
    #[error("cannot convert the checkpoint")]
    Convert(#[source] model::converted::ConvertError),
    /// A folder that cannot be verified at all.
    #[error("cannot verify")]
    Verify(#[source] model::converted::OpenError),
    /// A converted folder with faults, which were listed.
    #[error("the converted folder {} is damaged: {faults}; convert the checkpoint again", folder.display())]
    Damaged {
        /// The folder.
        folder: PathBuf,
        /// How many.
        faults: String,
    },
    /// Threads that the system does not give.
    #[error("cannot start {threads} threads")]
    Threads {
        /// How many.
        threads: usize,
        /// The reason.
        source: rayon::ThreadPoolBuildError,
    },
    /// Kernels that cannot be measured.
    #[error("cannot measure the kernels")]
    Kernels(#[source] io::Error),
    /// The tokenizer.
    #[error("cannot use the model's tokenizer")]
    Tokenizer(#[from] model::tokenizer::TokenizerError),
    /// Tokenizer and model do not belong together.
    #[error(
        "the tokenizer in {} has {found} tokens, but vocab_size in config.json is {expected}: the files are not of one model",
        folder.display()
    )]
    Vocabulary {
        /// The checkpoint folder.
        folder: PathBuf,
        /// Tokens of the tokenizer.
        found: usize,
        /// Tokens of the model.
        expected: usize,
    },
    /// The conversation cannot be written down.
    #[error("cannot encode the conversation")]
    Chat(#[from] model::chat::ChatError),
    /// The engine.
    #[error("cannot run the model")]
    Engine(#[from] decode::EngineError),
    /// The description of a pond.
    #[error("cannot use the pond")]
    Pond(#[from] pond::PondError),
    /// Ducks behind links.
    #[error(transparent)]
    Flock(#[from] crate::ducks::DucksError),
    /// A key, or a signature.
    #[error(transparent)]
    Key(#[from] pond::KeyError),
    /// A signature that is not that of this key and file.
    #[error("{} is not the signature of {} by the key {public}: the file was changed, or another key signed it",
        pond::signature::path_of(file).display(), file.display())]
    Signature {
        /// The file.
        file: PathBuf,
        /// The public key.
        public: String,
    },
    /// What machines boot.
    #[error(transparent)]
    Netboot(#[from] crate::netboot::NetbootError),
    /// The server.
    #[error("cannot serve")]
    Serve(#[from] server::serve::ServeError),
    /// Talking to a server.
    #[error(transparent)]
    Client(#[from] server::client::ClientError),
    /// The file with the key for a server.
    #[error("cannot read the API key in {}", path.display())]
    ApiKey {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A measurement whose two sides differ in more than time.
    #[error(
        "the server's answer ({server} tokens) is not the engine's ({engine} tokens): a fault of this program, please report it"
    )]
    OtherAnswer {
        /// Tokens of the engine's own answer.
        engine: usize,
        /// Tokens of the server's.
        server: usize,
    },
    /// Ports that this program cannot drive.
    #[error(
        "this engine is built without DPDK, which the pond's {ports} need: give these cards back to the kernel and write link = \"eth:INTERFACE\" for them"
    )]
    NoDpdk {
        /// Their names and links.
        ports: String,
    },
    /// A machine that lacks what a pond needs, which was listed.
    #[error("{} on this machine: do what the lines say", missing_text(*missing))]
    HostSetup {
        /// How much.
        missing: usize,
    },
    /// Standard output.
    #[error("cannot write to standard output")]
    Output(#[source] io::Error),
    /// Standard input of `chat`.
    #[error("cannot read from standard input")]
    Input(#[source] io::Error),
    /// The trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The terminal of `chat`.
    #[error("cannot use the terminal")]
    Terminal(#[from] rustyline::error::ReadlineError),
    /// The folder of a synthetic model.
    #[error("cannot make a folder for the synthetic model in {}; name another with TMPDIR", folder.display())]
    Folder {
        /// Where.
        folder: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Writing a synthetic model.
    #[error("cannot write the synthetic model")]
    Synthetic(#[source] Box<dyn StdError + Send + Sync>),
    /// `bench pond` measured something else than what it is for.
    #[error("the modelled pond cannot be measured: {what}")]
    Modelled {
        /// What.
        what: String,
    },
    /// Some turns of a conversation failed, each of which was told.
    #[error("{failed} of {turns} messages could not be answered")]
    Turns {
        /// How many.
        failed: usize,
        /// Of how many.
        turns: usize,
    },
    /// Ctrl-C or another signal. Nothing is said about it.
    #[error("interrupted")]
    Interrupted,
}

fn limit_text(limit: usize, model_limit: usize) -> String {
    if limit < model_limit {
        format!("max_len allows {limit} positions")
    } else {
        format!("the model allows {limit} positions")
    }
}

fn raise_text(limit: usize, model_limit: usize) -> String {
    if limit < model_limit { format!(" or raise --max-len (the model allows {model_limit})") } else { String::new() }
}

fn missing_text(missing: usize) -> String {
    if missing == 1 { "1 needed thing is missing".to_owned() } else { format!("{missing} needed things are missing") }
}

impl Error {
    /// The exit code: 2 where the request is at fault, 1 where something else is.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::CommandLine { .. }
            | Error::Settings(_)
            | Error::Prompt(_)
            | Error::PromptTooLong { .. }
            | Error::PromptFarTooLong { .. }
            | Error::Ducks { .. }
            | Error::MaxLen { .. }
            | Error::Length { .. }
            | Error::NoMtp { .. } => match self {
                Error::Prompt(PromptError::Read { .. }) => FAILURE,
                _ => USAGE,
            },
            Error::Serve(ServeError::Open { .. } | ServeError::Keys(_) | ServeError::Tls(_))
            | Error::Client(ClientError::Url { .. })
            | Error::ApiKey { .. } => USAGE,
            Error::Trace(TraceError::StandardOutput { .. } | TraceError::InModel { .. }) => USAGE,
            Error::Interrupted => signals::exit_code(),
            _ => FAILURE,
        }
    }

    /// The error and its causes on one line.
    pub fn line(&self) -> String {
        chain(self)
    }
}

/// An error and its causes on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some libraries repeat their cause in their own message.
        if !line.ends_with(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    one_line(&line)
}

/// Characters of anything that a person gave which a message repeats.
const MOST_REPEATED: usize = 300;
/// Characters of a message, whatever is in it.
const MOST_TOLD: usize = 2000;

/// The beginning of a text that is too long to be repeated.
pub fn shortened(text: &str) -> String {
    cut(text, MOST_REPEATED)
}

fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A message in which whatever was given on the command line is [`shortened`].
pub fn without_long_arguments(line: &str, arguments: &[String]) -> String {
    let values =
        arguments.iter().flat_map(|argument| [Some(argument.as_str()), argument.split_once('=').map(|(_, v)| v)]);
    let mut long: Vec<&str> = values.flatten().filter(|text| text.len() > MOST_REPEATED).collect();
    // A value before its beginning or end that is another argument.
    long.sort_by_key(|text| std::cmp::Reverse(text.len()));
    let line = long.into_iter().fold(line.to_owned(), |line, text| line.replace(text, &shortened(text)));
    cut(&line, MOST_TOLD)
}

/// Control characters escaped: whatever a file or an argument had in it, a message stays one line.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_on_the_same_line() {
        let source = io::Error::other("no\nspace");
        assert_eq!(Error::Output(source).line(), "cannot write to standard output: no\\nspace");
    }

    #[test]
    fn long_arguments_are_cut_and_short_ones_are_not() {
        let long = "é".repeat(400);
        let line = format!("no {long}, no x");
        let told = without_long_arguments(&line, &["x".into(), format!("--model={long}")]);
        assert_eq!(told, format!("no {}…, no x", "é".repeat(300)));
        assert_eq!(without_long_arguments(&"a".repeat(9999), &[]).chars().count(), MOST_TOLD + 1);
    }

    #[test]
    fn a_prompt_that_is_too_long_is_told_with_both_numbers_and_the_way_out() {
        let own = Error::PromptTooLong { tokens: 70, limit: 64, model_limit: 2048 };
        let expected = "the prompt has 70 tokens, but max_len allows 64 positions; make it shorter or raise --max-len (the model allows 2048)";
        assert_eq!(own.line(), expected);
        let models = Error::PromptTooLong { tokens: 2049, limit: 2048, model_limit: 2048 };
        assert_eq!(models.line(), "the prompt has 2049 tokens, but the model allows 2048 positions; make it shorter");
    }
}
