//! Text to token ids and back, for byte-level BPE tokenizers in Hugging Face's `tokenizer.json`.
//!
//! The merging itself is the `tokenizers` crate's. This module adds what a server needs around it: text typed by a person can be
//! encoded so that markup such as `<｜Assistant｜>` stays text ([`Tokenizer::encode_plain`]), and every token's exact bytes are at
//! hand ([`Tokenizer::token_bytes`]), from which [`crate::detokenise`] streams.
//!
//! A file comes from elsewhere: it is read with a bound, and what it asks for must be known to be harmless before the library sees it
//! (`file.rs`).
//!
//! Left out: tokenizers that are not byte-level (a token would have no bytes of its own), normalisers, chat formats
//! ([`crate::chat`]), padding and truncation.

mod bytes;
mod error;
mod file;
mod pattern;

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use tokenizers::{Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, PreTokenizer};

use crate::checkpoint;
use crate::detokenise::Detokeniser;
use bytes::Kind;
pub use bytes::TokenBytes;
pub use error::TokenizerError;

/// Bounds for the two files. DeepSeek's have 8 MB and 0.2 MB.
const LARGEST_FILE: u64 = 1 << 27;
const LARGEST_CONFIG: u64 = 1 << 24;

/// A byte-level BPE tokenizer with its added tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bytes: Arc<TokenBytes>,
    /// Length in bytes of the longest token.
    longest: usize,
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and, if it is there, `tokenizer_config.json` in `dir`.
    ///
    /// # Errors
    /// The file and the cause; a missing `tokenizer_config.json` is none.
    pub fn open(dir: &Path) -> Result<Self, TokenizerError> {
        let path = dir.join("tokenizer.json");
        let json = checkpoint::read_bounded(&path, LARGEST_FILE)?;
        let config_path = dir.join("tokenizer_config.json");
        let config = match checkpoint::exists(&config_path) {
            true => Some(checkpoint::read_bounded(&config_path, LARGEST_CONFIG)?),
            false => None,
        };
        Self::from_json(&json, &path, config.as_deref().map(|c| (c, &*config_path)))
    }

    /// The same from memory: the text of `tokenizer.json`, and of `tokenizer_config.json` if wanted. The paths only name the
    /// texts in errors.
    ///
    /// # Errors
    /// As [`open`](Self::open), except for reading.
    pub fn from_json(json: &[u8], path: &Path, config: Option<(&[u8], &Path)>) -> Result<Self, TokenizerError> {
        let checked = file::check(json, path)?;
        let inner = parse(&checked.json, path)?;
        for token in &checked.added {
            let found = inner.token_to_id(&token.content);
            if found != Some(token.id) {
                return Err(TokenizerError::AddedTokenId {
                    path: path.to_owned(),
                    token: token.content.clone(),
                    expected: token.id,
                    found,
                });
            }
        }
        let bytes = Arc::new(TokenBytes::new(&inner, path)?);
        let (bos, eos) = match config {
            Some((text, path)) => named_tokens(&inner, text, path)?,
            None => (None, None),
        };
        let longest = bytes.longest();
        Ok(Self { inner, bytes, longest, bos, eos })
    }

    /// Encodes `text`; added tokens written out in it (`<｜User｜>`, `<think>` …) are recognised, and none is put in beside them.
    ///
    /// For text that the program itself wrote. A person's text belongs into [`encode_plain`](Self::encode_plain).
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| encode_error(text, &*e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Encodes `text` as nothing but text: no added token ever comes out, whatever the text spells.
    ///
    /// Equal to [`encode`](Self::encode) for text without such markup. The library's own switch covers only tokens flagged
    /// `special`, and DeepSeek's role markers are not; so this runs the normaliser, the splitter and the merges, but not the step
    /// before them that looks for added tokens.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.merge(text).map_err(|e| encode_error(text, &*e))
    }

    fn merge(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let mut normalised = NormalizedString::from(text);
        if let Some(normaliser) = self.inner.get_normalizer() {
            normaliser.normalize(&mut normalised)?;
        }
        let mut words = PreTokenizedString::from(normalised);
        if let Some(splitter) = self.inner.get_pre_tokenizer() {
            splitter.pre_tokenize(&mut words)?;
        }
        words.tokenize(|word| self.inner.get_model().tokenize(word.get()))?;
        let encoding = words.into_encoding(None, 0, OffsetType::None)?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, added tokens written out; bytes that are not UTF-8 become U+FFFD. Ids without a token add nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.token_bytes(id));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The id of a token by its name: an added token as it reads, one of the vocabulary in the byte-level alphabet (`Ġthe`).
    #[must_use]
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The id of an added token (a marker such as `<think>`), but not of a word of the vocabulary that happens to read the same.
    #[must_use]
    pub fn marker(&self, token: &str) -> Option<u32> {
        self.id_of(token).filter(|&id| self.is_added(id))
    }

    /// The number of ids: the largest one plus 1. A checkpoint's own vocabulary size can be larger (rows without a token).
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// No text of that many bytes has fewer tokens, encoded either way: it is what the longest token would need. Costs nothing,
    /// so that a hopelessly long text can be refused before it is encoded.
    #[must_use]
    pub fn least_tokens(&self, bytes: usize) -> usize {
        bytes.div_ceil(self.longest.max(1))
    }

    /// The exact bytes that a token stands for, which need not be whole characters. Empty for an id without a token.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.of(id)
    }

    /// Whether the token is one of the added ones, special or not: markers that the merges can never make.
    #[must_use]
    pub fn is_added(&self, id: u32) -> bool {
        self.bytes.kind(id) != Kind::Word
    }

    /// Whether the file flags the token as special. DeepSeek flags begin, end and padding, but neither roles nor `<think>`.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.bytes.kind(id) == Kind::Special
    }

    /// The id of `bos_token` in `tokenizer_config.json`, if it names one.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The id of `eos_token` in `tokenizer_config.json`, if it names one.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// A fresh stream from token ids to text. It shares the table of bytes and does not borrow the tokenizer.
    #[must_use]
    pub fn detokeniser(&self) -> Detokeniser {
        Detokeniser::new(Arc::clone(&self.bytes))
    }
}

fn encode_error(text: &str, error: &dyn std::error::Error) -> TokenizerError {
    TokenizerError::Encode { length: text.len(), reason: error.to_string() }
}

/// The library's own parser on a text that is already checked. A panic of it becomes an error all the same: it is code of others
/// at a file of others, and one hole in the checks must not end a program that may be serving other requests.
fn parse(json: &str, path: &Path) -> Result<tokenizers::Tokenizer, TokenizerError> {
    // `FromStr` is compiled in the library; its generic constructors would build all of its parsers here, a minute's work.
    match std::panic::catch_unwind(|| json.parse()) {
        Ok(parsed) => parsed.map_err(|e: Box<dyn std::error::Error + Send + Sync>| file::parse_error(path, e)),
        Err(_) => Err(file::parse_error(path, "the tokenizer library broke down on it")),
    }
}

/// The part of `tokenizer_config.json` that matters here; the rest belongs to other programs.
#[derive(Deserialize)]
struct Config {
    bos_token: Option<NamedToken>,
    eos_token: Option<NamedToken>,
}

/// A token is named by its text, or by an object around it.
#[derive(Deserialize)]
#[serde(untagged)]
enum NamedToken {
    Text(String),
    Object { content: String },
}

fn named_tokens(
    inner: &tokenizers::Tokenizer,
    text: &[u8],
    path: &Path,
) -> Result<(Option<u32>, Option<u32>), TokenizerError> {
    let config: Config =
        serde_json::from_slice(text).map_err(|source| TokenizerError::Config { path: path.to_owned(), source })?;
    let id = |field, token: Option<NamedToken>| {
        let Some(NamedToken::Text(content) | NamedToken::Object { content }) = token else {
            return Ok(None);
        };
        match inner.token_to_id(&content) {
            Some(id) => Ok(Some(id)),
            None => Err(TokenizerError::UnknownToken { path: path.to_owned(), field, token: content }),
        }
    };
    Ok((id("bos_token", config.bos_token)?, id("eos_token", config.eos_token)?))
}
