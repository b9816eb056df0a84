//! A model made ready: checkpoint, tokenizer, engine, and the checks that need more than one of them.

use std::path::{Path, PathBuf};

use decode::{Engine, EngineOptions, Stage0};
use kernels::tree::Shape;
use model::program::{Dims, Model};
use model::tokenizer::Tokenizer;

use crate::error::Error;
use crate::provenance::Provenance;
use crate::settings::{self, Settings};
use crate::{ducks, model_folder, progress};

/// Columns of an expert's intermediate dimension in one slice.
pub const SLICE_WIDTH: usize = 64;

/// The part of an engine's start, as far as progress is concerned, in which experts are packed for ducks behind links.
const PACKING: f32 = 0.1;

/// A checkpoint that was opened and checked, but has no engine yet: what can be refused is refused here, before work.
#[derive(Debug)]
pub struct Opened {
    /// The folder.
    pub folder: PathBuf,
    /// Programs and mapped weights.
    pub model: Model,
    /// Positions that may be used: the model's, or fewer by the settings.
    pub max_len: usize,
}

impl Opened {
    /// Opens the checkpoint that the settings name.
    ///
    /// # Errors
    /// No model, a faulty one, or settings that it does not allow.
    pub fn open(settings: &Settings) -> Result<Opened, Error> {
        if let Some(file) = &settings.pond {
            check_links(&pond::Pond::load(file)?)?;
        }
        // A pond's description may name its model; what the settings say comes first.
        let of_pond = match (&settings.model, &settings.pond) {
            (None, Some(file)) => pond::Pond::load(file)?.model_folder(),
            _ => None,
        };
        let stated = settings.model.as_deref().or(of_pond.as_deref());
        Opened::open_folder(&model_folder::find(stated)?, settings)
    }

    /// Opens the checkpoint in `folder`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_folder(folder: &Path, settings: &Settings) -> Result<Opened, Error> {
        let model = progress::spinner("loading the model", || model::arch::load(folder))?;
        if settings.pond.is_none() {
            check_ducks(shape(&model.dims), settings.ducks)?;
        }
        let max_len = max_len(model.dims.max_positions, settings.max_len)?;
        if settings.mtp && model.mtp.is_none() {
            return Err(Error::NoMtp { folder: folder.into() });
        }
        Ok(Opened { folder: folder.into(), model, max_len })
    }

    /// The tokenizer in the same folder.
    ///
    /// # Errors
    /// No usable tokenizer, or one with tokens that the model does not have.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        let tokenizer = Tokenizer::open(&self.folder)?;
        let (found, expected) = (tokenizer.vocab_size(), self.model.dims.vocab);
        if found > expected {
            return Err(Error::Vocabulary { folder: self.folder.clone(), found, expected });
        }
        Ok(tokenizer)
    }

    /// Refuses a prompt that does not fit.
    ///
    /// # Errors
    /// [`Error::PromptTooLong`] with both numbers.
    pub fn check_prompt(&self, tokens: usize) -> Result<(), Error> {
        check_prompt(tokens, self.max_len, self.model.dims.max_positions)
    }

    /// Refuses a text that cannot fit, before its tokens are counted.
    ///
    /// # Errors
    /// [`Error::PromptFarTooLong`].
    pub fn check_bytes(&self, tokenizer: &Tokenizer, bytes: usize) -> Result<(), Error> {
        check_bytes(tokenizer, bytes, self.max_len, self.model.dims.max_positions)
    }

    /// Builds the engine.
    ///
    /// # Errors
    /// What the engine says: no memory, no plan.
    pub fn engine(self, settings: &Settings) -> Result<Engine, Error> {
        self.engine_of_server(settings, &|_| (), None)
    }

    /// Builds the engine, and tells meanwhile how far that is, 0 to 1, from any thread. `url` is where it answers, if that is known.
    ///
    /// # Errors
    /// As [`engine`](Self::engine).
    pub fn engine_of_server(
        mut self,
        settings: &Settings,
        progress: &(dyn Fn(f32) + Sync),
        url: Option<&str>,
    ) -> Result<Engine, Error> {
        let stage0 = stage0(settings.stage0);
        let options = EngineOptions {
            ducks: settings.ducks,
            threads: settings.threads,
            numerics: numerics(settings.numerics, stage0),
            chunk: settings.chunk,
            max_len: self.max_len,
            stage0,
        };
        let Some(file) = &settings.pond else {
            return progress::spinner("preparing the ducks", || {
                self.pack(progress)?;
                Ok(Engine::new(self.model, &options)?)
            });
        };
        let (description, key) = ducks::read(file)?;
        Provenance::of(Path::new("/"), Some(&description)).log();
        description.check_model(shape(&self.model.dims).units().unwrap_or(0)).map_err(|error| error.in_file(file))?;
        // Packing reads memory, loading goes over a network.
        self.pack(&|part| progress(PACKING * part))?;
        let loading = |part| progress(PACKING + (1.0 - PACKING) * part);
        let (flock, held) =
            ducks::open(&description, key, &self.model, options.numerics, options.chunk, &loading, url)?;
        let mut engine = Engine::with_flock(self.model, flock, &options)?;
        engine.keep(Box::new(held));
        Ok(engine)
    }

    /// Has the experts ready for the kernels.
    fn pack(&mut self, progress: &(dyn Fn(f32) + Sync)) -> Result<(), Error> {
        let told = |done: usize, of: usize| progress(done as f32 / of.max(1) as f32);
        flock::pack(&mut self.model, &told).map_err(|error| Error::Engine(error.into()))
    }
}

/// Refuses a prompt of `tokens` where only `max_len` positions may be used.
///
/// # Errors
/// [`Error::PromptTooLong`].
pub fn check_prompt(tokens: usize, max_len: usize, max_positions: usize) -> Result<(), Error> {
    if tokens > max_len {
        return Err(Error::PromptTooLong { tokens, limit: max_len, model_limit: max_positions });
    }
    Ok(())
}

/// Refuses a prompt of `bytes` bytes where only `max_len` positions may be used, whatever its tokens are.
///
/// # Errors
/// [`Error::PromptFarTooLong`].
pub fn check_bytes(tokenizer: &Tokenizer, bytes: usize, max_len: usize, max_positions: usize) -> Result<(), Error> {
    let tokens = tokenizer.least_tokens(bytes);
    if tokens > max_len {
        return Err(Error::PromptFarTooLong { bytes, tokens, limit: max_len, model_limit: max_positions });
    }
    Ok(())
}

/// Refuses a pond with ports that this program cannot drive.
///
/// # Errors
/// [`Error::NoDpdk`].
fn check_links(description: &pond::Pond) -> Result<(), Error> {
    let ports = description.ports.iter().filter(|port| port.link.kind() == pond::LinkKind::Dpdk);
    let ports: Vec<String> = ports.map(|port| format!("{} ({})", port.name, port.link)).collect();
    if ports.is_empty() { Ok(()) } else { Err(Error::NoDpdk { ports: ports.join(", ") }) }
}

/// The tree of one layer's units.
pub fn shape(dims: &Dims) -> Shape {
    let narrow = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    Shape { slices: narrow(dims.expert_width / SLICE_WIDTH), experts: narrow(dims.experts) }
}

/// Refuses more ducks than a layer of that shape has units.
///
/// # Errors
/// [`Error::Ducks`].
pub fn check_ducks(shape: Shape, ducks: usize) -> Result<(), Error> {
    let units = shape.units().unwrap_or(0) as usize;
    if ducks > units {
        return Err(Error::Ducks { found: ducks, units });
    }
    Ok(())
}

/// The positions that may be used where the settings want `wanted` and the model allows `model_limit`.
///
/// # Errors
/// [`Error::MaxLen`].
pub fn max_len(model_limit: usize, wanted: usize) -> Result<usize, Error> {
    match wanted {
        0 => Ok(model_limit),
        wanted if wanted > model_limit => Err(Error::MaxLen { found: wanted, model_limit }),
        wanted => Ok(wanted),
    }
}

/// The setting in the engine's own words.
pub fn numerics(setting: settings::Numerics, stage0: Stage0) -> model::Numerics {
    match setting {
        settings::Numerics::Auto if stage0.tries_gpu() => model::Numerics::Bf16,
        settings::Numerics::Auto => model::Numerics::Exact,
        settings::Numerics::Exact => model::Numerics::Exact,
        settings::Numerics::Bf16 => model::Numerics::Bf16,
        settings::Numerics::Fp8 => model::Numerics::Fp8,
    }
}

/// The setting in the engine's own words.
pub fn stage0(setting: settings::Stage0) -> Stage0 {
    match setting {
        settings::Stage0::Auto => Stage0::Auto,
        settings::Stage0::Cpu => Stage0::Cpu,
        settings::Stage0::Cuda => Stage0::Cuda,
    }
}
