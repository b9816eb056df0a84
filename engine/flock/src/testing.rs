//! Models and steps for tests. Weights are mapped files, so a model is written as a checkpoint first.

use std::path::Path;

use model::checkpoint::{Checkpoint, DType, scale_shape};
use model::program::{Dims, Expert, ExpertLayer, Model, Program, Weights};
use model::step::StepInput;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};

/// SplitMix64.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Roughly normal.
    pub fn float(&mut self) -> f32 {
        (0..4).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5).sum::<f32>() * 1.7
    }
}

/// Bytes of random finite elements of size about one.
fn elements(random: &mut Random, dtype: DType, count: usize) -> Vec<u8> {
    (0..count)
        .flat_map(|_| match dtype {
            DType::F8E4M3 => {
                let code = random.next() as u8;
                vec![if code & 0x7f == 0x7f { 0 } else { code }]
            }
            DType::BF16 => (random.float().to_bits() >> 16).to_le_bytes()[..2].to_vec(),
            _ => random.float().to_le_bytes().to_vec(),
        })
        .collect()
}

struct Writer {
    tensors: Vec<(String, Dtype, [usize; 2], Vec<u8>)>,
}

impl Writer {
    fn add(&mut self, random: &mut Random, name: &str, dtype: DType, shape: [usize; 2]) {
        let kind = match dtype {
            DType::F8E4M3 => Dtype::F8_E4M3,
            DType::BF16 => Dtype::BF16,
            _ => Dtype::F32,
        };
        self.tensors.push((name.into(), kind, shape, elements(random, dtype, shape[0] * shape[1])));
        if dtype == DType::F8E4M3 {
            let blocks = scale_shape(shape);
            let scales = (0..blocks[0] * blocks[1]).flat_map(|_| (random.float().abs() * 0.01 + 1e-4).to_le_bytes());
            self.tensors.push((format!("{name}_scale_inv"), Dtype::F32, blocks, scales.collect()));
        }
    }

    /// The folder may go as soon as it is open: mappings outlive their names.
    fn open(self) -> Checkpoint {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| -> std::path::PathBuf { Path::join(folder.path(), name) };
        std::fs::write(path("config.json"), "{}").expect("a writable folder");
        let views = self.tensors.iter().map(|(name, dtype, shape, bytes)| {
            (name.clone(), TensorView::new(*dtype, shape.to_vec(), bytes).expect("sizes agree"))
        });
        serialize_to_file(views, None, &path("model.safetensors")).expect("a writable folder");
        Checkpoint::open(folder.path()).expect("just written")
    }
}

const TYPES: &[DType] = &[DType::F8E4M3, DType::BF16, DType::F32];

/// A model of random experts and nothing else. `damage` may change a tensor's bytes.
pub(crate) fn model(dims: Dims, layers: u16, dtype: DType, seed: u64, damage: impl Fn(&str, &mut Vec<u8>)) -> Model {
    let mut random = Random(seed);
    let mut writer = Writer { tensors: Vec::new() };
    let (narrow, wide) = ([dims.expert_width, dims.hidden], [dims.hidden, dims.expert_width]);
    let name = |layer: u16, expert: usize, part: &str| format!("layers.{layer}.experts.{expert}.{part}");
    for layer in 0..layers {
        for expert in 0..dims.experts {
            for (part, shape) in [("gate", narrow), ("up", narrow), ("down", wide)] {
                writer.add(&mut random, &name(layer, expert, part), dtype, shape);
            }
        }
    }
    writer.tensors.iter_mut().for_each(|(name, _, _, bytes)| damage(name, bytes));
    let checkpoint = writer.open();
    let get =
        |layer, expert, part, shape| checkpoint.matrix(&name(layer, expert, part), shape, TYPES).expect("just written");
    let experts = |layer| {
        let expert = |e| Expert {
            gate: get(layer, e, "gate", narrow),
            up: get(layer, e, "up", narrow),
            down: get(layer, e, "down", wide),
        };
        ExpertLayer { layer, experts: (0..dims.experts).map(expert).collect() }
    };
    Model {
        dims,
        end_tokens: Vec::new(),
        weights: Weights::default(),
        caches: Vec::new(),
        rotary: Vec::new(),
        main: Program { buffers: Vec::new(), selections: 0, segments: Vec::new() },
        mtp: None,
        experts: (0..layers).map(experts).collect(),
        slices: None,
    }
}

/// Sizes with the given units, choices and hidden size.
pub(crate) fn dims(slices: usize, experts: usize, chosen: usize, hidden: usize) -> Dims {
    Dims { hidden, vocab: 1, max_positions: 1, experts, chosen, expert_width: slices * 64 }
}

/// A random step.
pub(crate) fn step(random: &mut Random, dims: Dims, layer: u16, lanes: usize) -> StepInput {
    let mut input = StepInput { layer, lanes, ..StepInput::default() };
    for _ in 0..lanes {
        input.hidden.extend((0..dims.hidden).map(|_| random.float()));
        let mut ids: Vec<u16> = (0..dims.experts as u16).collect();
        for i in 0..dims.chosen {
            ids.swap(i, i + random.below(dims.experts - i));
        }
        ids.truncate(dims.chosen);
        ids.sort_unstable();
        input.experts.extend(ids);
        input.weights.extend((0..dims.chosen).map(|_| random.float().abs() + 0.01));
    }
    input
}
