//! `duckpond sign`: detached signatures of programs, made where the secret key is and nowhere near a build.

use pond::{hex, key, signature};

use crate::cli::SignArgs;
use crate::error::{Error, one_line};
use crate::output;

/// Runs the command.
///
/// # Errors
/// A file or key that cannot be read; with `--verify`, a signature that is not good.
pub fn run(args: &SignArgs) -> Result<(), Error> {
    let file = &args.file;
    let text = if args.verify {
        let public = key::load_public(&args.key)?;
        if !signature::verify(file, &public)? {
            return Err(Error::Signature { file: file.clone(), public: hex::encode(&public.0) });
        }
        format!("verified      {}", file.display())
    } else {
        let path = signature::create(file, &key::load(&args.key)?)?;
        format!("signature     {}", path.display())
    };
    output::print(&format!("{}\n", one_line(&text))).map_err(Error::Output)
}
