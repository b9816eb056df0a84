//! The conversion as a whole: what will be written, whether it fits, and the order of the steps.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::HOST_FILE;
use super::error::ConvertError;
use super::host_file::{HostFile, SmallFile, small_files};
use super::manifest::{Identity, Manifest, RoundingReport, format_name, layout_probe, slice_name};
use super::output::{Opened, Output, Wanted};
use super::slice_file::Geometry;
use super::slice_writer::{self, SliceJob};
use super::slices::{self, FormatChoice};
use super::source;
use crate::arch::{self, LoadError};
use crate::checkpoint::Checkpoint;
use crate::program::Model;

/// How to convert.
#[derive(Clone, Debug)]
pub struct Options {
    /// How experts are stored.
    pub format: FormatChoice,
    /// Threads that pack and write; 0: one for each core.
    pub threads: usize,
    /// Bytes after which what is written is made durable, so that an interrupted run goes on from there. The default, 256 MiB, costs
    /// nothing that can be measured.
    pub durable_every: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { format: FormatChoice::Auto, threads: 0, durable_every: 256 << 20 }
    }
}

/// What a conversion or a check is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Writing the host's tensors and the small files.
    Host,
    /// Writing the slice files.
    Slices,
    /// Reading everything back.
    Verify,
}

/// How far a conversion or a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Bytes of the result that are there, or checked.
    pub done: u64,
    /// All its bytes.
    pub total: u64,
    /// Bytes of `done` that were there before: a rate and a time left must not count them.
    pub before: u64,
}

/// What a conversion did.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The folder's manifest.
    pub manifest: Manifest,
    /// Bytes of all files.
    pub bytes: u64,
    /// Bytes written by this run; 0 if everything was there.
    pub written: u64,
    /// Blocks of each slice file that an interrupted run had left.
    pub resumed_blocks: usize,
    /// What rounding did to the experts, interrupted runs included.
    pub rounding: RoundingReport,
}

/// Counts bytes for whoever watches.
pub(super) struct Meter<'a> {
    report: &'a (dyn Fn(Progress) + Sync),
    phase: Phase,
    total: u64,
    done: AtomicU64,
    before: AtomicU64,
}

impl<'a> Meter<'a> {
    pub fn new(report: &'a (dyn Fn(Progress) + Sync), phase: Phase, total: u64) -> Meter<'a> {
        Meter { report, phase, total, done: AtomicU64::new(0), before: AtomicU64::new(0) }
    }

    /// So many bytes were done by this run.
    pub fn add(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let before = self.before.load(Ordering::Relaxed);
        (self.report)(Progress { phase: self.phase, done, total: self.total, before });
    }

    /// So many bytes were done before.
    pub fn skip(&self, bytes: u64) {
        self.before.fetch_add(bytes, Ordering::Relaxed);
        self.add(bytes);
    }

    fn written(&self) -> u64 {
        self.done.load(Ordering::Relaxed) - self.before.load(Ordering::Relaxed)
    }
}

/// Everything that a conversion will write.
struct Plan {
    model: Model,
    geometry: Geometry,
    identity: Identity,
    host: HostFile,
    small: Vec<SmallFile>,
    /// In the order of writing.
    wanted: Vec<Wanted>,
}

impl Plan {
    fn new(source: &Checkpoint, format: FormatChoice) -> Result<Plan, ConvertError> {
        let model = arch::from_checkpoint(source)?;
        let config = |cause| LoadError::Config { folder: source.folder().into(), source: cause };
        let architecture = arch::detect(source.config()).map_err(config)?;
        let host = HostFile::new(arch::host_tensors(source).map_err(config)?);
        let format = format.resolve(&model.experts)?;
        let geometry = slices::geometry(&model.experts, format)?;
        let identity = Identity {
            architecture: architecture.name().into(),
            source: source::fingerprint(source)?,
            format: format_name(format).into(),
            layout: layout_probe(format),
            hidden: model.dims.hidden,
            expert_width: model.dims.expert_width,
            slices: geometry.slices,
            experts: geometry.experts,
            layers: model.experts.iter().map(|layer| layer.layer).collect(),
        };
        let small = small_files(source)?;
        let mut wanted: Vec<_> = small.iter().map(|file| (file.name.clone(), file.size())).collect();
        wanted.push((HOST_FILE.into(), host.size()));
        wanted.extend((0..geometry.slices).map(|slice| (slice_name(slice), geometry.file_len())));
        Ok(Plan { model, geometry, identity, host, small, wanted })
    }
}

/// Converts a checkpoint into the folder `out`: one file for each slice, one for the host's tensors, the small files, and last
/// the manifest. Takes less than 2 GiB of memory whatever the checkpoint's size. `progress` is called many times a second at most,
/// from several threads.
///
/// A folder that holds an unfinished conversion of the same checkpoint to the same format is gone on with; a finished one is
/// left as it is, file by file.
///
/// # Errors
/// Nothing is left under a final name that is not whole. What is refused before anything is written: a checkpoint that would not load, experts
/// that cannot be stored so, a folder with other files in it, too little room.
pub fn convert(
    source: &Checkpoint,
    out: &Path,
    options: &Options,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<Report, ConvertError> {
    let plan = Plan::new(source, options.format)?;
    let bytes = plan.wanted.iter().map(|(_, size)| size).sum();
    let mut output = match Output::open(out, &plan.identity, &plan.wanted)? {
        Opened::Complete(manifest) => {
            let rounding = manifest.rounding();
            return Ok(Report { manifest, bytes, written: 0, resumed_blocks: 0, rounding });
        }
        Opened::Work(output) => output,
    };
    let threads = options.threads;
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .map_err(|source| ConvertError::Threads { threads, source })?;
    let mut meter = Meter::new(progress, Phase::Host, bytes);
    for file in &plan.small {
        file.write(&mut output, &meter)?;
    }
    plan.host.write(&mut output, &meter)?;
    meter.phase = Phase::Slices;
    let job = SliceJob {
        geometry: plan.geometry,
        model: plan.identity.digest(),
        layers: &plan.model.experts,
        durable_every: options.durable_every,
    };
    let resumed_blocks = slice_writer::write(&job, &mut output, &pool, &meter)?;
    let unit_bytes = plan.geometry.layout.len() as u64;
    let manifest = output.complete(&plan.wanted, unit_bytes, plan.geometry.stride())?;
    let rounding = manifest.rounding();
    Ok(Report { manifest, bytes, written: meter.written(), resumed_blocks, rounding })
}
