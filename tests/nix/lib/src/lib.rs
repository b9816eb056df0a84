//! Nothing: `Cargo.toml` says why this is here.
