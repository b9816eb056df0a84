//! The table of settings: names and what may stand there. The ranges themselves are in [`super::Merged::resolve`].

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// Its name in files; `DUCKPOND_` + the same in capitals in the environment, with hyphens as a flag.
    pub name: &'static str,
    /// What may stand there, for messages.
    pub allowed: &'static str,
    /// Whether an environment variable's text is taken as it is, even if it looks like a number.
    pub text: bool,
}

const fn text(name: &'static str, allowed: &'static str) -> Key {
    Key { name, allowed, text: true }
}

const fn value(name: &'static str, allowed: &'static str) -> Key {
    Key { name, allowed, text: false }
}

/// Every setting, in the order in which `duckpond config` shows them.
pub const KEYS: &[Key] = &[
    text("model", "the path of a folder"),
    text("pond", "the path of a pond's description"),
    value("ducks", "a whole number from 1 to the number of units of the model (65535 at most)"),
    value("threads", "a whole number from 0 to 1024"),
    text("numerics", "auto, exact, bf16 or fp8"),
    text("stage0", "auto, cpu or cuda"),
    value("max_len", "a whole number from 0 to 16777216"),
    value("chunk", "a whole number from 1 to 2048"),
    value("max_tokens", "a whole number from 0 to 16777216"),
    value("temperature", "0, or a number from 1e-30 to 100"),
    value("top_k", "a whole number from 0 to 16777216"),
    value("top_p", "a number from 1e-30 to 1"),
    value("min_p", "a number from 0, below 1"),
    value("repetition_penalty", "a number from 0.01 to 100"),
    value("seed", "a whole number from 0 to 9223372036854775807"),
    value("stop", "a list of at most 64 texts, none empty and none longer than 4096 bytes"),
    value("mtp", "true or false"),
    text("system", "a text"),
    value("think", "true or false"),
    text("log", "off, error, warn, info, debug, trace or a filter such as warn,flock=debug"),
];

impl Key {
    /// The setting of that name.
    ///
    /// # Panics
    /// If there is none: names are written in the program.
    pub fn named(name: &str) -> &'static Key {
        KEYS.iter().find(|key| key.name == name).expect("the name is in the table")
    }

    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("DUCKPOND_{}", self.name.to_uppercase())
    }

    /// The flag.
    pub fn flag(&self) -> String {
        format!("--{}", self.name.replace('_', "-"))
    }
}
