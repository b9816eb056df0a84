//! For tests of this crate: Duckling's tokenizer.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use model::tokenizer::Tokenizer;

/// The tokenizer of the model that ships with the repository.
pub(crate) fn duckling() -> Arc<Tokenizer> {
    static TOKENIZER: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let open = || {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/duckling");
        Arc::new(Tokenizer::open(&folder).expect("it ships with the code"))
    };
    Arc::clone(TOKENIZER.get_or_init(open))
}
