//! `--trace FILE.csv`: a row per token, in a file that appears when the answer has ended.
//!
//! Columns: index from 0; milliseconds since the request began; token id; text (the pieces of all rows together are the answer
//! with its markers, a character that spans tokens stands with its last one); the drafted token id, if any; whether it was
//! accepted. A failure to write does not disturb the answer: it is kept and told at the end. Without a token nothing is written.

use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use decode::TokenEvent;
use model::detokenise::Detokeniser;
use tempfile::TempPath;

use crate::signals::{Temporary, temporary};

const HEADER: &str = "index,ms,token,text,draft,accepted\n";
/// As many symbolic links as Linux follows.
const MOST_LINKS: usize = 40;

/// There is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// It could not be written.
    #[error("cannot write the trace {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The answer goes there already.
    #[error("the trace {} is where standard output goes; name another file", path.display())]
    StandardOutput {
        /// The file.
        path: PathBuf,
    },
    /// The model's files are read only.
    #[error("the trace {} is in the model's folder {}; name a file elsewhere", path.display(), folder.display())]
    InModel {
        /// The file.
        path: PathBuf,
        /// The folder.
        folder: PathBuf,
    },
}

/// A trace being written.
#[derive(Debug)]
pub struct Trace {
    path: PathBuf,
    target: Target,
    text: Detokeniser,
    tokens: usize,
    failed: Option<io::Error>,
}

/// A regular file is written beside its place under another name; anything else (a pipe, a device) is written to.
#[derive(Debug)]
enum Target {
    Beside { file: BufWriter<File>, beside: TempPath, place: PathBuf, _cleared: Temporary },
    Stream(BufWriter<File>),
}

impl Trace {
    /// Opens the file, so that a wrong path is found before any work. `model` is the folder of the model.
    ///
    /// # Errors
    /// The path and the system's reason; a place that something else has.
    pub fn create(path: &Path, model: &Path, text: Detokeniser) -> Result<Trace, TraceError> {
        let error = |source| TraceError::Write { path: path.into(), source };
        if is_standard_output(path) {
            return Err(TraceError::StandardOutput { path: path.into() });
        }
        let place = resolve(path).map_err(error)?;
        // A model's files may themselves be links to another place.
        let inside = |path: &Path| folder_of(path).is_ok_and(|folder| is_within(folder, model));
        if inside(path) || inside(&place) {
            return Err(TraceError::InModel { path: path.into(), folder: model.into() });
        }
        let target = open(place).map_err(error)?;
        Ok(Trace { path: path.into(), target, text, tokens: 0, failed: None })
    }

    /// Adds a token.
    pub fn token(&mut self, token: &TokenEvent) {
        if self.tokens == 0 {
            self.write(HEADER);
        }
        self.tokens += 1;
        let text = self.text.push(token.id).replace('"', "\"\"");
        let (draft, accepted) = match token.draft {
            Some(draft) => (draft.to_string(), if token.accepted { "true" } else { "false" }),
            None => (String::new(), ""),
        };
        let ms = token.at.as_secs_f64() * 1e3;
        self.write(&format!("{},{ms:.3},{},\"{text}\",{draft},{accepted}\n", token.index, token.id));
    }

    /// Completes the file and gives it its name; a trace without tokens just goes away.
    ///
    /// # Errors
    /// The first failure of all. There is then no file of that name, or the one that was there before.
    pub fn finish(self) -> Result<(), TraceError> {
        let Trace { path, target, tokens, failed, .. } = self;
        let written = match failed {
            Some(error) => Err(error),
            None if tokens == 0 => Ok(()),
            None => complete(target),
        };
        written.map_err(|source| TraceError::Write { path, source })
    }

    fn write(&mut self, text: &str) {
        if self.failed.is_none() {
            let written = match &mut self.target {
                Target::Beside { file, .. } => file.write_all(text.as_bytes()),
                Target::Stream(stream) => stream.write_all(text.as_bytes()),
            };
            self.failed = written.err();
        }
    }
}

/// The file itself, behind all symbolic links, whether it exists or not.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(ErrorKind::IsADirectory.into());
    }
    // The name that the system gives a pipe or a terminal behind a link need not be one that can be opened.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Ok(path.to_owned());
    }
    let mut place = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::canonicalize(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            found => return found,
        }
        match fs::read_link(&place) {
            // A relative one is relative to the folder of the link.
            Ok(target) => place = folder_of(&place)?.join(target),
            Err(_) => return Ok(folder_of(&place)?.canonicalize()?.join(place.file_name().unwrap_or_default())),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

fn folder_of(place: &Path) -> io::Result<&Path> {
    match place.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(folder) => Ok(folder),
        None => Err(ErrorKind::IsADirectory.into()),
    }
}

/// Two names of a device that swallows everything do no harm.
fn is_standard_output(path: &Path) -> bool {
    let (Ok(ours), Ok(its)) = (fs::metadata("/dev/stdout"), fs::metadata(path)) else { return false };
    let harmless = ours.file_type().is_char_device() && !io::stdout().is_terminal();
    (ours.dev(), ours.ino()) == (its.dev(), its.ino()) && !harmless
}

fn is_within(folder: &Path, model: &Path) -> bool {
    matches!((folder.canonicalize(), model.canonicalize()), (Ok(folder), Ok(model)) if folder.starts_with(&model))
}

fn open(place: PathBuf) -> io::Result<Target> {
    let there = match fs::metadata(&place) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match &there {
        Some(metadata) if metadata.is_dir() => return Err(ErrorKind::IsADirectory.into()),
        Some(metadata) if !metadata.is_file() => {
            return Ok(Target::Stream(BufWriter::new(File::options().write(true).open(&place)?)));
        }
        _ => {}
    }
    let make = || {
        // As any new file; the crate's own default is for secrets.
        let permissions = Permissions::from_mode(0o666);
        let mut builder = tempfile::Builder::new();
        builder.prefix(".duckpond-trace-").suffix(".csv").permissions(permissions);
        let file = builder.tempfile_in(folder_of(&place)?).map_err(without_path)?;
        let path = file.path().to_owned();
        Ok((file, path))
    };
    let (file, cleared) = temporary::<_, io::Error>(make)?;
    let (file, beside) = file.into_parts();
    if let Some(metadata) = there {
        file.set_permissions(metadata.permissions())?;
    }
    Ok(Target::Beside { file: BufWriter::new(file), beside, place, _cleared: cleared })
}

/// The system's reason alone: the temporary name means nothing to anyone.
fn without_path(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|error| error.source()).and_then(|error| error.downcast_ref::<io::Error>());
    match inner.and_then(io::Error::raw_os_error) {
        Some(code) => io::Error::from_raw_os_error(code),
        None => error.kind().into(),
    }
}

fn complete(target: Target) -> io::Result<()> {
    match target {
        Target::Stream(mut stream) => stream.flush(),
        Target::Beside { mut file, beside, place, .. } => {
            file.flush()?;
            beside.persist(place).map_err(|error| without_path(error.error))
        }
    }
}
