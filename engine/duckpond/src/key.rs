//! `duckpond key`: the key by which ducks know their host. The secret stays in its file; only the public key is ever shown.

use pond::{hex, key};

use crate::cli::KeyCommand;
use crate::error::Error;
use crate::output;

/// Runs the command.
///
/// # Errors
/// A file that exists already or cannot be written; a file that is no key, or a secret that others can read.
pub fn run(command: &KeyCommand) -> Result<(), Error> {
    let public = match command {
        KeyCommand::New(args) => key::create(&args.file)?.public(),
        KeyCommand::Public(args) => key::load_public(&args.file)?,
    };
    output::print(&format!("{}\n", hex::encode(&public.0))).map_err(Error::Output)
}
