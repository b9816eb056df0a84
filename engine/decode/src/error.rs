//! Why a request could not be answered.

use flock::FlockError;
use host::StageError;

/// Why an engine could not be made or a request not be answered.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Stage 0.
    #[error("stage 0")]
    Stage(#[from] StageError),
    /// Stage 1.
    #[error("ducks")]
    Flock(#[from] FlockError),
    /// Worker threads could not be started.
    #[error("starting {threads} threads")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        source: rayon::ThreadPoolBuildError,
    },
    /// Longer contexts than the model has.
    #[error("a context of {found} positions was asked for, the model allows 1 to {limit}")]
    MaxLen {
        /// Positions asked for.
        found: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// Nothing to answer.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The prompt does not fit.
    #[error("the prompt has {found} tokens, the context holds {limit}")]
    PromptTooLong {
        /// Tokens of the prompt.
        found: usize,
        /// Positions of the context.
        limit: usize,
    },
    /// A token id that the model does not have: tokenizer and checkpoint do not belong together.
    #[error("prompt token {index} is {token}, the model has {vocab} tokens; tokenizer and checkpoint do not match")]
    Token {
        /// Where in the prompt.
        index: usize,
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Drafting without an MTP layer.
    #[error("the checkpoint has no MTP layer to draft with")]
    NoMtp,
    /// Whoever chooses tokens in the stage's place could not.
    #[error("no token could be chosen")]
    Chooser(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A stage that does not show the logits from which the host is to choose.
    #[error("the stage has no logits for position {position}")]
    NoLogits {
        /// The position.
        position: usize,
    },
}
