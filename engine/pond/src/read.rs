//! Texts to descriptions and back. Both languages become the same tree of values first, so that a mistake has the same field in either.

mod distinct;

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use figment::error::Kind;
use figment::value::{Dict, Value};
use serde::Deserialize;

use self::distinct::Distinct;
use crate::error::one_line;
use crate::{Pond, PondError, Problem};

/// Far above any description: one of 10,000 ducks has 2 MB.
const LARGEST: u64 = 1 << 24;

impl Pond {
    /// Reads a description and checks it.
    ///
    /// # Errors
    /// Names the file, the field and what is wrong with it.
    pub fn load(path: &Path) -> Result<Pond, PondError> {
        let pond = Pond::read(path)?;
        pond.check().map_err(|error| error.in_file(path))?;
        Ok(pond)
    }

    /// Reads a description whose ports may still be without ducks; else it is consistent.
    ///
    /// # Errors
    /// As [`Pond::load`].
    pub fn load_unfinished(path: &Path) -> Result<Pond, PondError> {
        let pond = Pond::read(path)?;
        pond.check_unfinished().map_err(|error| error.in_file(path))?;
        Ok(pond)
    }

    /// Reads a description that may be unfinished, such as one whose ducks are still to be adopted: every field has its form, but nobody has asked
    /// whether they fit each other.
    ///
    /// # Errors
    /// As [`Pond::load`].
    pub fn read(path: &Path) -> Result<Pond, PondError> {
        let read = || {
            let failed = |source| PondError::new("", Problem::Read(source));
            let mut text = Vec::new();
            // A named pipe on disk would be waited for; what a shell passes as /dev/fd/N is one, too, and comes.
            let piped = std::fs::metadata(path).map_err(failed)?.file_type().is_fifo();
            if piped && !["/dev", "/proc"].iter().any(|folder| path.starts_with(folder)) {
                return Err(failed(std::io::Error::other("it is a named pipe, no file")));
            }
            let file = File::open(path).map_err(failed)?;
            file.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
            if text.len() as u64 > LARGEST {
                return Err(PondError::new("", Problem::Large { limit: LARGEST }));
            }
            let text = String::from_utf8(text).map_err(|error| {
                let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                syntax("text", lines_before(good, good.len()), "it is not UTF-8")
            })?;
            // No TOML begins with a brace.
            if text.trim_start().starts_with('{') { Pond::from_json(&text) } else { Pond::from_toml(&text) }
        };
        let mut pond = read().map_err(|error| error.in_file(path))?;
        pond.folder = path.parent().unwrap_or(Path::new("")).into();
        Ok(pond)
    }

    /// A description written by hand; not yet [checked](Pond::check).
    ///
    /// # Errors
    /// Names the line of a mistake in the language, or the field whose value has the wrong type or form.
    pub fn from_toml(text: &str) -> Result<Pond, PondError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = lines_before(text.as_bytes(), error.span().map_or(0, |span| span.start));
            syntax("TOML", line, error.message())
        })?;
        from_value(Value::serialize(table).expect("TOML knows no values that figment does not"))
    }

    /// A description made by Nix; not yet [checked](Pond::check).
    ///
    /// # Errors
    /// As [`Pond::from_toml`].
    pub fn from_json(text: &str) -> Result<Pond, PondError> {
        let reason = |error: serde_json::Error| {
            let text = error.to_string();
            let reason = text.rsplit_once(" at line ").map_or(&*text, |(reason, _)| reason);
            syntax("JSON", error.line(), reason)
        };
        let object: serde_json::Value = serde_json::from_str(text).map_err(reason)?;
        // A tree keeps the last of two fields of one name; this does not.
        serde_json::from_str::<Distinct>(text).map_err(reason)?;
        from_value(Value::serialize(object).expect("JSON knows no values that figment does not"))
    }

    /// The description as TOML. Reading it gives the same description; comments of a text that it was read from are lost.
    ///
    /// # Errors
    /// For a path that is not UTF-8, which no description can have.
    pub fn to_toml(&self) -> Result<String, PondError> {
        let mount = self.huge_pages.as_ref().and_then(|pages| pages.mount.as_ref());
        for (field, path) in [
            ("model", &self.model),
            ("key", &self.key),
            ("kernels", &self.kernels),
            ("netboot", &self.netboot),
            ("huge_pages.mount", &mount.cloned()),
        ] {
            if path.as_ref().is_some_and(|path| path.to_str().is_none()) {
                return Err(PondError::new(field, Problem::Form("a path that is not UTF-8 cannot be written".into())));
            }
        }
        Ok(toml::to_string(self).expect("texts, small numbers, lists and tables"))
    }
}

fn lines_before(text: &[u8], end: usize) -> usize {
    text.iter().take(end).filter(|&&byte| byte == b'\n').count() + 1
}

fn syntax(language: &'static str, line: usize, reason: &str) -> PondError {
    let reason = one_line(&reason.split_whitespace().collect::<Vec<_>>().join(" "));
    PondError::new("", Problem::Syntax { line, language, reason })
}

/// Has every table be one, where the types would take a list of its values too, and takes out nulls of the fields whose types have none: null
/// and absent are the same.
fn prepare(description: &mut Dict) -> Result<(), PondError> {
    if let Some(pages) = description.get_mut("huge_pages").filter(|pages| !is_null(pages)) {
        table("huge_pages", pages)?;
    }
    for name in ["ports", "ducks"] {
        let Some(Value::Array(_, rows)) = description.get_mut(name) else { continue };
        for (number, row) in rows.iter_mut().enumerate() {
            let row = table(&format!("{name}[{number}]"), row)?;
            if name == "ducks" {
                row.retain(|name, value| name != "link" || !is_null(value));
            }
        }
    }
    description.retain(|name, value| !["vfio_ids", "ducks"].contains(&name.as_str()) || !is_null(value));
    Ok(())
}

fn is_null(value: &Value) -> bool {
    matches!(value, Value::Empty(..))
}

fn table<'v>(field: &str, value: &'v mut Value) -> Result<&'v mut Dict, PondError> {
    let found = value.to_actual();
    match value {
        Value::Dict(_, table) => Ok(table),
        _ => Err(PondError::new(field, Problem::Form(one_line(&format!("found {found}, expected a table"))))),
    }
}

fn from_value(mut value: Value) -> Result<Pond, PondError> {
    if let Value::Dict(_, description) = &mut value {
        prepare(description)?;
    }
    Pond::deserialize(&value).map_err(|error: figment::Error| {
        let mut path = error.path.clone();
        let problem = match error.kind {
            // Its name is in the path already.
            Kind::UnknownField(_, known) => Problem::Unknown { known: known.join(", ") },
            Kind::MissingField(name) => {
                path.push(name.into());
                Problem::Missing
            }
            kind => Problem::Form(one_line(&kind.to_string())),
        };
        PondError::new(field(&path), problem)
    })
}

/// `ducks`, `3`, `mac` as `ducks[3].mac`.
fn field(path: &[String]) -> String {
    let mut field = String::new();
    for part in path {
        if !field.is_empty() && !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            field = format!("{field}[{part}]");
        } else {
            let dot = if field.is_empty() { "" } else { "." };
            field = format!("{field}{dot}{}", one_line(part));
        }
    }
    field
}
