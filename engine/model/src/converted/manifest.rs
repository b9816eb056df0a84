//! `manifest.json`: what a converted folder holds. Written last, so a folder that has one is complete.
//!
//! The text is a function of the content: parsing and writing it again gives the same bytes, which is how damage in it is found, together
//! with a checksum over the rest of the text.

use std::fs;
use std::path::Path;

use fp9::{Format, Rounding};
use kernels::unit::{Expert, Source, Tensor, UnitLayout, pack_unit};
use serde::{Deserialize, Serialize};

use super::error::OpenError;
use super::slice_file::Geometry;
use crate::checkpoint::one_line;

/// Name of the manifest.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Version of the folder's format. 1 had no digests of units.
pub const VERSION: u32 = 2;
/// Far above any manifest: a model of 16,384 slices has 2 MB.
const LARGEST: u64 = 1 << 24;

/// Whose conversion a folder is. Two conversions with equal identities write the same slice files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Name under `architectures` in config.json.
    pub architecture: String,
    /// blake3 of the source's configuration and of the headers and samples of its weight files.
    pub source: String,
    /// How experts are stored: `e4m3`, `fp9` or `bf16`.
    pub format: String,
    /// Which arrangement of a unit's bytes; changes whenever the kernels' does.
    pub layout: String,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of an expert.
    pub expert_width: usize,
    /// Slice files.
    pub slices: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// The model's number of each layer with experts.
    pub layers: Vec<u16>,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// blake3 of all of it.
    pub blake3: String,
    /// What rounding did to the units in it; slice files only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding: Option<RoundingReport>,
}

/// What rounding did to the experts' weights; all zeros but `weights` where the format holds every value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundingReport {
    /// Weights converted.
    pub weights: u64,
    /// Weights whose value changed.
    pub changed: u64,
    /// Weights that became zero.
    pub flushed: u64,
    /// Largest error relative to its weight.
    pub max_relative: f64,
    /// Sum of squared errors.
    pub squared_error: f64,
    /// Sum of squared weights.
    pub squared_weight: f64,
}

impl RoundingReport {
    /// Root of the mean squared error, relative to the root of the mean squared weight.
    pub fn relative_rms(&self) -> f64 {
        if self.squared_weight == 0.0 { 0.0 } else { (self.squared_error / self.squared_weight).sqrt() }
    }

    /// Whether every weight kept its value.
    pub fn is_exact(&self) -> bool {
        self.changed == 0
    }

    pub(super) fn merge(&mut self, other: &RoundingReport) {
        self.weights += other.weights;
        self.changed += other.changed;
        self.flushed += other.flushed;
        self.max_relative = self.max_relative.max(other.max_relative);
        self.squared_error += other.squared_error;
        self.squared_weight += other.squared_weight;
    }
}

impl From<Rounding> for RoundingReport {
    fn from(rounding: Rounding) -> RoundingReport {
        let Rounding { weights, changed, flushed, max_relative, squared_error, squared_weight } = rounding;
        RoundingReport { weights, changed, flushed, max_relative, squared_error, squared_weight }
    }
}

/// A converted folder's contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`VERSION`].
    pub version: u32,
    /// Whose conversion it is.
    pub model: Identity,
    /// Bytes of a unit's block.
    pub unit_bytes: u64,
    /// Bytes from one block to the next in a slice file.
    pub unit_stride: u64,
    /// Every other file, in the order in which they were written.
    pub files: Vec<FileEntry>,
    /// blake3 of this text with nothing here.
    pub checksum: String,
}

/// Name of a slice's file.
pub fn slice_name(slice: usize) -> String {
    format!("slice-{slice:02}.duck")
}

/// Name of a format in manifests and on command lines.
pub fn format_name(format: Format) -> &'static str {
    match format {
        Format::E4m3 => "e4m3",
        Format::Fp9 => "fp9",
        Format::Bf16 => "bf16",
    }
}

fn format_from(name: &str) -> Option<Format> {
    [Format::E4m3, Format::Fp9, Format::Bf16].into_iter().find(|&format| format_name(format) == name)
}

/// A digest of how this program arranges a unit: of one small unit whose weights are all different, packed.
pub(super) fn layout_probe(format: Format) -> String {
    const HIDDEN: usize = 256;
    const WIDTH: usize = 128;
    let layout = UnitLayout::new(format, HIDDEN).expect("256 is a multiple of 64");
    let mut block = vec![0; layout.len()];
    let scales: Vec<f32> = (0..2).map(|i| 1.5f32.powi(i)).collect();
    if format == Format::Bf16 {
        let tensor = |seed| (0..HIDDEN * WIDTH).map(|i| 0x3c00 + (i * seed % 0x5ff) as u16).collect::<Vec<_>>();
        let [gate, up, down] = [7, 11, 13].map(tensor);
        let [gate, up, down] = [&gate, &up, &down].map(|codes| Tensor { codes, scales: &[] });
        let source = Source::Bf16(Expert { gate, up, down, width: WIDTH });
        pack_unit(&layout, &source, 1, &mut block).expect("the probe is a valid expert");
    } else {
        let tensor = |seed| (0..HIDDEN * WIDTH).map(|i| (i * seed % 0x7f) as u8).collect::<Vec<_>>();
        let [gate, up, down] = [7, 11, 13].map(tensor);
        let [gate, up, down] = [&gate, &up, &down].map(|codes| Tensor { codes, scales: &scales });
        let source = Source::E4m3(Expert { gate, up, down, width: WIDTH });
        pack_unit(&layout, &source, 1, &mut block).expect("the probe is a valid expert");
    }
    blake3::hash(&block).to_hex()[..16].to_owned()
}

impl Identity {
    /// What slice files carry to say whose they are.
    pub(super) fn digest(&self) -> [u8; 32] {
        let text = serde_json::to_vec(self).expect("an identity is plain data");
        *blake3::hash(&text).as_bytes()
    }

    /// The first difference to another identity: its name, and the value here and there.
    pub(super) fn difference(&self, other: &Identity) -> Option<(&'static str, String, String)> {
        let layers = |identity: &Identity| format!("{:?}", identity.layers);
        let pairs = [
            ("architecture", self.architecture.clone(), other.architecture.clone()),
            ("hidden size", self.hidden.to_string(), other.hidden.to_string()),
            ("expert width", self.expert_width.to_string(), other.expert_width.to_string()),
            ("slices", self.slices.to_string(), other.slices.to_string()),
            ("experts per layer", self.experts.to_string(), other.experts.to_string()),
            ("layers", layers(self), layers(other)),
            ("source digest", self.source.clone(), other.source.clone()),
            ("expert format", self.format.clone(), other.format.clone()),
            ("unit layout", self.layout.clone(), other.layout.clone()),
        ];
        pairs.into_iter().find(|(_, a, b)| a != b)
    }
}

impl Manifest {
    /// Fills in the checksum.
    pub(super) fn seal(mut self) -> Manifest {
        self.checksum = self.checksum_of_rest();
        self
    }

    fn checksum_of_rest(&self) -> String {
        let blank = Manifest { checksum: String::new(), ..self.clone() };
        blake3::hash(blank.text().as_bytes()).to_hex().to_string()
    }

    /// The file's content.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a manifest is plain data");
        text.push('\n');
        text
    }

    /// Reads and checks a folder's manifest. Says nothing of the files.
    ///
    /// # Errors
    /// [`OpenError::NoManifest`], [`OpenError::Manifest`] for one that is damaged or from another version.
    pub fn read(folder: &Path) -> Result<Manifest, OpenError> {
        let path = folder.join(MANIFEST_FILE);
        let io = |source| OpenError::Io { path: path.clone(), source };
        let unusable = |reason: String| OpenError::Manifest { path: path.clone(), reason };
        let size = match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => metadata.len(),
            Ok(_) => return Err(unusable("it is not a regular file".into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(OpenError::NoManifest { folder: folder.into() });
            }
            Err(error) => return Err(io(error)),
        };
        if size > LARGEST {
            return Err(unusable(format!("it has {size} bytes, more than the {LARGEST} that are read")));
        }
        let text = fs::read(&path).map_err(io)?;
        Manifest::parse(&text).map_err(unusable)
    }

    fn parse(text: &[u8]) -> Result<Manifest, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(text).map_err(one_line)?;
        if version != VERSION {
            return Err(format!("it has version {version}, expected {VERSION}; convert the checkpoint again"));
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(one_line)?;
        if manifest.checksum != manifest.checksum_of_rest() || manifest.text().as_bytes() != text {
            return Err("its checksum does not fit its text, so something has changed it".into());
        }
        manifest.geometry()?;
        Ok(manifest)
    }

    /// Where the slice files' blocks lie, checked against what the manifest says of them.
    pub(super) fn geometry(&self) -> Result<Geometry, String> {
        let Identity { ref format, hidden, expert_width, slices, experts, ref layers, .. } = self.model;
        let format = format_from(format).ok_or_else(|| format!("its format {} is not known", one_line(format)))?;
        let geometry = Geometry::new(format, hidden, expert_width, layers.len(), experts).map_err(one_line)?;
        let found = (slices, self.unit_bytes, self.unit_stride);
        let expected = (geometry.slices, geometry.layout.len() as u64, geometry.stride());
        if found != expected {
            return Err(format!("its slices, unit bytes and stride are {found:?}, expected {expected:?}"));
        }
        let names: Vec<_> = self.files.iter().map(|file| file.name.as_str()).collect();
        if let Some(name) =
            names.iter().find(|name| name.is_empty() || name.contains(['/', '\\']) || name.starts_with('.'))
        {
            return Err(format!("it names the file {}, which is not a plain name", one_line(name)));
        }
        let wanted =
            (0..slices).map(slice_name).chain([super::HOST_FILE.into(), crate::checkpoint::CONFIG_FILE.into()]);
        for name in wanted {
            if !names.contains(&name.as_str()) {
                return Err(format!("it does not list {name}"));
            }
        }
        Ok(geometry)
    }

    /// What rounding did to all experts.
    pub fn rounding(&self) -> RoundingReport {
        let mut sum = RoundingReport::default();
        self.files.iter().filter_map(|file| file.rounding.as_ref()).for_each(|part| sum.merge(part));
        sum
    }

    /// The entry of that name.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        self.files.iter().find(|file| file.name == name)
    }
}
