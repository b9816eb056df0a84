//! Converted folders: a model's experts cut into units that the kernels read as they are, one file for each slice, and everything that
//! the host needs beside them, so that the checkpoint can be deleted.
//!
//! ```text
//! manifest.json            what the folder holds: sizes, digests; written last
//! slice-00.duck …          the units of one slice, all layers and experts (see the module slice_file)
//! host.safetensors         the host's tensors under their published names
//! config.json, tokenizer.json, …   copies
//! ```
//!
//! [`convert`] writes such a folder, [`verify`] reads every byte back, [`Converted`] opens one. [`Slices`] is what the experts' side takes:
//! from slice files, or packed in memory from a checkpoint that is small enough.
//!
//! Left out: which holder gets which units (a plan does that), and sending them anywhere.

mod convert;
mod error;
mod host_file;
mod manifest;
mod output;
mod slice_file;
mod slice_writer;
mod slices;
mod source;
mod verify;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use convert::{Options, Phase, Progress, Report, convert};
pub use error::{ConvertError, OpenError, PackError};
pub use manifest::{FileEntry, Identity, MANIFEST_FILE, Manifest, RoundingReport, VERSION, format_name, slice_name};
pub use slice_file::PAGE;
pub use slices::{FormatChoice, IN_MEMORY_LIMIT, Slices};
pub use verify::{Fault, FaultKind, VerifyReport, verify};

use crate::arch::{self, LoadError};
use crate::checkpoint::Checkpoint;
use crate::program::Model;
use slice_file::SliceFile;

/// Name of the host's tensors.
pub const HOST_FILE: &str = "host.safetensors";

/// An open converted folder. Its files must not be changed meanwhile.
#[derive(Debug)]
pub struct Converted {
    folder: PathBuf,
    manifest: Manifest,
    slices: Arc<Slices>,
}

impl Converted {
    /// Whether a folder says that it is a converted one.
    pub fn is(folder: &Path) -> bool {
        folder.join(MANIFEST_FILE).exists()
    }

    /// Checks the manifest, the files' sizes, and the slice files' headers and tables, and maps them. Reads no weights: that
    /// they are undamaged is [`verify`]'s to say.
    ///
    /// # Errors
    /// Names the file at fault.
    pub fn open(folder: &Path) -> Result<Converted, OpenError> {
        let manifest = Manifest::read(folder)?;
        let path = || folder.join(MANIFEST_FILE);
        let geometry = manifest.geometry().map_err(|reason| OpenError::Manifest { path: path(), reason })?;
        let expected = manifest::layout_probe(geometry.layout.format());
        if manifest.model.layout != expected {
            let found = crate::checkpoint::one_line(&manifest.model.layout);
            return Err(OpenError::Layout { folder: folder.into(), expected, found });
        }
        for file in &manifest.files {
            let path = folder.join(&file.name);
            let found = match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => metadata.len(),
                Ok(_) => return Err(OpenError::MissingFile { folder: folder.into(), file: file.name.clone() }),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Err(OpenError::MissingFile { folder: folder.into(), file: file.name.clone() });
                }
                Err(source) => return Err(OpenError::Io { path, source }),
            };
            if found != file.size {
                return Err(OpenError::Size { path, expected: file.size, found });
            }
        }
        let model = manifest.model.digest();
        let files = (0..geometry.slices)
            .map(|slice| SliceFile::open(&folder.join(slice_name(slice)), &geometry, slice, &model))
            .collect::<Result<_, _>>()?;
        let slices = Arc::new(Slices::from_files(geometry, files));
        Ok(Converted { folder: folder.into(), manifest, slices })
    }

    /// What the folder holds.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The experts.
    pub fn slices(&self) -> &Arc<Slices> {
        &self.slices
    }

    /// The host's tensors and the configuration, as a checkpoint without experts.
    ///
    /// # Errors
    /// As [`Checkpoint::open`].
    pub fn host(&self) -> Result<Checkpoint, LoadError> {
        Ok(Checkpoint::open_single(&self.folder, HOST_FILE)?)
    }

    /// The model, with its experts in [`Model::slices`].
    ///
    /// # Errors
    /// As [`arch::load`]: the host's tensors are checked like any checkpoint's, and the slices against the configuration.
    pub fn model(&self) -> Result<Model, LoadError> {
        let mut model = arch::from_host_tensors(&self.host()?)?;
        let Identity { hidden, expert_width, experts, ref layers, .. } = self.manifest.model;
        let numbers: Vec<_> = model.experts.iter().map(|layer| layer.layer).collect();
        let expected = (model.dims.hidden, model.dims.expert_width, model.dims.experts, &numbers);
        let found = (hidden, expert_width, experts, layers);
        if expected != found {
            let reason = format!(
                "its hidden size, expert width, experts and layers are {found:?}, expected {expected:?} by config.json"
            );
            return Err(OpenError::Manifest { path: self.folder.join(MANIFEST_FILE), reason }.into());
        }
        model.slices = Some(Arc::clone(&self.slices));
        Ok(model)
    }
}
