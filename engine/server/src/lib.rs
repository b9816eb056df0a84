//! Duckpond's HTTP server: an OpenAI-compatible API, a page, metrics, over anything that answers token requests.
//!
//! [`serve::Server`] is a server from start to end. Below it, the [`scheduler`] owns a [`backend::Backend`] and a thread; [`api`] builds
//! the routes; [`answer`] and [`tool_stream`] make text and tool calls of tokens; [`choose`] and [`grammar`] choose tokens on the host
//! where the stages cannot. [`client`] is the other end, for `duckpond chat --url`.
//!
//! Left out: how tokens are computed (crate `decode`), and how the pond is described or watched; a backend reports it as
//! [`pond::PondStatus`].
#![forbid(unsafe_code)]

pub mod answer;
pub mod api;
pub mod backend;
pub mod choose;
pub mod client;
pub mod grammar;
mod json_stream;
pub mod keys;
mod listen;
pub mod metrics;
pub mod pond;
pub mod queue;
pub mod scheduler;
pub mod serve;
mod socket;
pub mod systemd;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod tool_stream;
