//! Prefill and decode: carries requests through stage 0 and the flock, token by token.
//!
//! [`Engine`] owns one stage and one flock and answers one [`Request`] at a time. It knows token ids only; text, templates and
//! terminals belong to the program above.
#![forbid(unsafe_code)]

mod engine;
mod error;
mod pass;
mod request;
mod speculate;
mod stage0;

pub use engine::{Engine, EngineOptions};
pub use error::EngineError;
pub use request::{Event, Finish, Outcome, Request, Stats, TokenEvent};
pub use speculate::{ChooserHook, DraftHook, LogitsHook};
pub use stage0::{Backend, Stage0};
