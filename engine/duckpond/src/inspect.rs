//! `duckpond inspect`: what is in a checkpoint folder, who needs how much of it, and everything that is wrong with it.

use std::fmt::Write;
use std::path::Path;

use flock::plan::Plan;
use model::arch::deepseek_v32::config::{Config, Quantization};
use model::arch::deepseek_v32::tensors::Inventory;
use model::arch::{self, Architecture, LoadError};
use model::checkpoint::Checkpoint;
use model::converted::{Converted, HOST_FILE, Manifest};
use model::program::{Dims, Model};
use model::tokenizer::Tokenizer;

use crate::bench::weights::expert_bytes;
use crate::convert::rounding;
use crate::error::{Error, one_line};
use crate::format::{bytes, count, grouped};
use crate::loaded::shape;
use crate::settings::Settings;
use crate::{model_folder, output, progress};

/// Faults of tensors that are listed one by one.
const LISTED: usize = 20;

/// Runs the command.
///
/// # Errors
/// A folder that is no checkpoint; or, after everything was shown, faults that keep it from being run.
pub fn run(checkpoint: Option<&Path>, settings: &Settings) -> Result<(), Error> {
    let folder = match checkpoint {
        Some(folder) => folder.to_owned(),
        None => model_folder::find(settings.model.as_deref())?,
    };
    if Converted::is(&folder) {
        return converted(&folder, settings);
    }
    let checkpoint = Checkpoint::open(&folder).map_err(LoadError::from)?;
    let at_fault = |source| LoadError::Config { folder: folder.clone(), source };
    let Architecture::DeepseekV32 = arch::detect(checkpoint.config()).map_err(at_fault)?;
    let config = Config::from_json(checkpoint.config()).map_err(at_fault)?;
    let inventory = progress::spinner("reading the checkpoint", || Inventory::take(&checkpoint, &config));
    let mut report = Report::default();
    report.model(&folder, &checkpoint, &config);
    report.sizes(&checkpoint, &inventory);
    if inventory.faults.is_empty() {
        report.machine(&arch::load(&folder)?, settings)?;
    }
    report.tokenizer(&folder, &config);
    report.tensors(&inventory);
    report.print(&folder)
}

/// A converted folder: what its manifest says, and the model in it.
fn converted(folder: &Path, settings: &Settings) -> Result<(), Error> {
    let converted = Converted::open(folder).map_err(LoadError::from)?;
    let host = converted.host()?;
    let at_fault = |source| LoadError::Config { folder: folder.to_owned(), source };
    let Architecture::DeepseekV32 = arch::detect(host.config()).map_err(at_fault)?;
    let config = Config::from_json(host.config()).map_err(at_fault)?;
    let mut report = Report::default();
    report.model(folder, &host, &config);
    report.manifest(converted.manifest());
    report.machine(&converted.model()?, settings)?;
    report.tokenizer(folder, &config);
    report.state();
    report.print(folder)
}

/// Lines of a name and a value.
#[derive(Default)]
struct Report {
    text: String,
    faults: usize,
}

impl Report {
    fn line(&mut self, name: &str, value: impl AsRef<str>) {
        writeln!(self.text, "{name:<14}{}", value.as_ref()).expect("writing to a string");
    }

    fn fault(&mut self, fault: impl std::fmt::Display) {
        self.line("fault", one_line(&fault.to_string()));
    }

    fn model(&mut self, folder: &Path, checkpoint: &Checkpoint, config: &Config) {
        self.line("checkpoint", one_line(&folder.display().to_string()));
        self.line("architecture", Architecture::DeepseekV32.name());
        let mtp = if config.mtp_layers > 0 { " + 1 MTP layer" } else { "" };
        self.line("layers", format!("{} ({} dense){mtp}", config.layers, config.dense_layers));
        self.line("hidden", grouped(config.hidden as u64));
        self.line(
            "attention",
            format!(
                "{} heads over a latent of {} + {} rotary; indexer keeps {} positions",
                config.heads,
                config.kv_lora,
                config.rope,
                grouped(config.index_topk as u64)
            ),
        );
        self.line(
            "experts",
            format!(
                "{} per layer, {} for each token, in {} groups ({} allowed); {} shared; {} columns each",
                config.experts,
                config.experts_per_token,
                config.groups,
                config.groups_per_token,
                config.shared_experts,
                grouped(config.moe_intermediate as u64)
            ),
        );
        self.line("vocabulary", grouped(config.vocab as u64));
        self.line("positions", grouped(config.max_positions as u64));
        let weights = match config.quantization {
            Quantization::None => "bf16 or f32",
            Quantization::Fp8 { .. } => "fp8 (e4m3, one scale for each 128 × 128 block)",
        };
        self.line("weights", weights);
        let tensors = count(checkpoint.tensors().len(), "tensor");
        self.line("files", format!("{} with {tensors}", count(checkpoint.files().len(), "file")));
    }

    fn sizes(&mut self, checkpoint: &Checkpoint, inventory: &Inventory) {
        let all: u64 = checkpoint.tensors().map(|tensor| tensor.bytes().len() as u64).sum();
        let experts: u64 = inventory.expert_bytes.iter().sum();
        let layers = inventory.expert_bytes.iter().filter(|&&size| size > 0).count();
        self.line("size", bytes(all));
        self.line("  host", bytes(inventory.host_bytes));
        self.line("  ducks", format!("{} in {}", bytes(experts), count(layers, "layer")));
    }

    /// What a converted folder says of itself.
    fn manifest(&mut self, manifest: &Manifest) {
        let of = &manifest.model;
        let all: u64 = manifest.files.iter().map(|file| file.size).sum();
        let host = manifest.file(HOST_FILE).map_or(0, |file| file.size);
        let units = manifest.unit_bytes * (of.slices * of.experts * of.layers.len()) as u64;
        self.line("converted", format!("experts as {} ({})", of.format, rounding(&manifest.rounding())));
        self.line("size", format!("{} in {}", bytes(all), count(manifest.files.len(), "file")));
        self.line("  host", bytes(host));
        let slices = count(of.slices, "slice");
        self.line("  ducks", format!("{} in {} and {slices}", bytes(units), count(of.layers.len(), "layer")));
    }

    fn machine(&mut self, model: &Model, settings: &Settings) -> Result<(), Error> {
        let per_position: usize = model.caches.iter().map(|cache| cache.width * size_of::<f32>()).sum();
        let limit = match settings.max_len {
            0 => model.dims.max_positions,
            limit => limit.min(model.dims.max_positions),
        };
        self.line(
            "caches",
            format!(
                "{} for each position, {} for {}",
                bytes(per_position as u64),
                bytes((per_position * limit) as u64),
                grouped(limit as u64)
            ),
        );
        self.plan(&model.dims, expert_bytes(model), settings.ducks)
    }

    /// What a duck holds: every layer is placed by the same plan, and units are of equal size.
    fn plan(&mut self, dims: &Dims, all: u64, ducks: usize) -> Result<(), Error> {
        let shape = shape(dims);
        let units = shape.units().unwrap_or(0);
        if ducks > units as usize {
            return Err(Error::Ducks { found: ducks, units: units as usize });
        }
        self.line(
            "units",
            format!("{} a layer ({} slices × {} experts)", grouped(u64::from(units)), shape.slices, shape.experts),
        );
        match Plan::for_ducks(shape, dims.chosen, ducks) {
            Ok(plan) => {
                self.line("plan", plan.summary(dims.chosen));
                let share =
                    |units: u32| all as u128 * u128::from(units) / u128::from(shape.units().unwrap_or(1).max(1));
                let held = (0..plan.holders()).map(|duck| plan.units(duck));
                let (least, most) = (held.clone().min().unwrap_or(0), held.max().unwrap_or(0));
                let (least, most) = (bytes(share(least) as u64), bytes(share(most) as u64));
                let each = if least == most { most } else { format!("{least} to {most}") };
                self.line("  per duck", each);
            }
            Err(error) => {
                self.faults += 1;
                self.fault(error);
            }
        }
        Ok(())
    }

    fn tokenizer(&mut self, folder: &Path, config: &Config) {
        match Tokenizer::open(folder) {
            Ok(tokenizer) if tokenizer.vocab_size() <= config.vocab => {
                self.line("tokenizer", format!("{} tokens", grouped(tokenizer.vocab_size() as u64)));
            }
            Ok(tokenizer) => {
                self.faults += 1;
                let (found, expected) = (tokenizer.vocab_size(), config.vocab);
                self.fault(Error::Vocabulary { folder: folder.into(), found, expected });
            }
            Err(error) => {
                self.faults += 1;
                self.fault(Error::from(error).line());
            }
        }
    }

    fn tensors(&mut self, inventory: &Inventory) {
        self.faults += inventory.faults.len();
        for fault in inventory.faults.iter().take(LISTED) {
            self.fault(fault);
        }
        if inventory.faults.len() > LISTED {
            self.line("", format!("and {} more", grouped((inventory.faults.len() - LISTED) as u64)));
        }
        if let Some(first) = inventory.unused.first() {
            let rest = inventory.unused.len() - 1;
            let more = if rest > 0 { format!(" and {} more", grouped(rest as u64)) } else { String::new() };
            self.line("unused", one_line(&format!("{first}{more}")));
        }
        self.state();
    }

    fn state(&mut self) {
        let ready = if self.faults == 0 { "complete" } else { "cannot be run" };
        self.line("state", ready);
    }

    fn print(&self, folder: &Path) -> Result<(), Error> {
        output::print(&self.text).map_err(Error::Output)?;
        match self.faults {
            0 => Ok(()),
            faults => Err(Error::Faulty { folder: folder.into(), faults: count(faults, "fault") }),
        }
    }
}
