//! What the tests in `tests/` share: a stage and a flock that run whole passes and record what every operation gives.
#![forbid(unsafe_code)]

pub mod checks;
pub mod disturb;
pub mod ducks;
pub mod forced;
pub mod namespace;
pub mod netns;
pub mod operations;
pub mod processes;
pub mod questions;
pub mod random;
pub mod subjects;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use decode::{Engine, Event, Request};
use flock::Flock;
use host::cpu::{CpuOptions, CpuStage, Isa, Observer, Seen};
use host::stage::{Lane, Layers, PassSpec, Progress, SequenceId, Stage};
use model::Numerics;
use model::program::{Model, Op, View, Weights};
use model::sampling::SamplingParams;

/// The Duckling checkpoint that ships with the repository. A test program that was carried to another machine runs in the repository's root there.
pub fn duckling_folder() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/duckling");
    if built.is_dir() { built } else { PathBuf::from("models/duckling") }
}

/// Loads the checkpoint in a folder.
pub fn load(folder: &std::path::Path) -> Model {
    model::arch::load(folder).expect("a good checkpoint")
}

/// A stage, a flock and one sequence.
pub struct Pond {
    stage: Box<dyn Stage>,
    flock: Flock,
    sequence: SequenceId,
    recorded: Arc<Mutex<Recorded>>,
}

/// Values by name (`layers.2.attn_out`), rows by position.
#[derive(Default)]
pub struct Recorded {
    /// Activations and scores.
    pub rows: BTreeMap<String, BTreeMap<usize, Vec<f32>>>,
    /// Kept positions and chosen experts, ascending.
    pub choices: BTreeMap<String, BTreeMap<usize, Vec<u32>>>,
}

impl Pond {
    /// A pond of in-process ducks on this thread's pool.
    pub fn new(model: Model, ducks: usize, numerics: Numerics, isa: Isa) -> Pond {
        Pond::with(model, ducks, numerics, |model, sources, recorder| {
            let options = CpuOptions { numerics, max_lanes: 1024, sources, isa };
            let mut stage = CpuStage::new(model, options).expect("units that can be numbered");
            stage.observe(Some(recorder));
            Box::new(stage)
        })
    }

    /// A pond with a stage that `make` makes from the model, the sources of sums that a step has, and the observer that records.
    pub fn with(
        model: Model,
        ducks: usize,
        numerics: Numerics,
        make: impl FnOnce(Arc<Model>, usize, Box<dyn Observer>) -> Box<dyn Stage>,
    ) -> Pond {
        let flock = Flock::in_process(&model, ducks, numerics).expect("a possible number of ducks");
        let max_len = model.dims.max_positions.min(2048);
        let recorded = Arc::<Mutex<Recorded>>::default();
        let recorder = Recorder {
            into: recorded.clone(),
            weights: model.weights.clone(),
            caches: model.caches.iter().map(|c| c.name.clone()).collect(),
            first: 0,
            adds: 0,
        };
        let mut stage = make(Arc::new(model), flock.sources(), Box::new(recorder));
        let sequence = stage.open(max_len).expect("positions that the model has");
        Pond { stage, flock, sequence, recorded }
    }

    /// Runs one pass over neighbouring positions; gives the logits of all its lanes.
    pub fn pass(&mut self, layers: Layers, first: usize, tokens: &[u32]) -> Vec<Vec<f32>> {
        let lanes: Vec<Lane> = tokens
            .iter()
            .enumerate()
            .map(|(i, &token)| Lane { sequence: self.sequence, position: first + i, token })
            .collect();
        let logits = (0..lanes.len()).collect();
        let pass = self.stage.begin(&PassSpec { layers, lanes, logits }).expect("a pass that continues the caches");
        for segment in 0..self.stage.segments(layers) {
            let ticket = self.stage.submit(pass, segment).expect("segments in order");
            while self.stage.poll(&ticket).expect("the stage does not fail") == Progress::Running {}
            if let Some(io) = &ticket.io {
                self.flock.submit(io.clone()).expect("a well-formed step");
                while !io.is_summed() {
                    self.flock.poll().expect("in-process ducks do not fail");
                }
            }
        }
        let rows = (0..tokens.len()).map(|t| self.stage.logits(pass, t).expect("asked for").to_vec()).collect();
        self.stage.end(pass);
        rows
    }

    /// Forgets all positions.
    pub fn rewind(&mut self) {
        self.stage.truncate(self.sequence, 0, 0);
    }

    /// What the passes so far computed.
    pub fn recorded(&self) -> std::sync::MutexGuard<'_, Recorded> {
        self.recorded.lock().expect("no test thread panicked with it")
    }
}

/// Names what ops give as the golden data does.
struct Recorder {
    into: Arc<Mutex<Recorded>>,
    weights: Weights,
    /// Names such as `layers.2.index`.
    caches: Vec<String>,
    /// The program's first layer.
    first: usize,
    /// Residual additions seen in this pass: two a layer.
    adds: usize,
}

/// The N of `layers.N.…` or `model.layers.N.…`.
fn layer_in(name: &str) -> usize {
    name.trim_start_matches("model.").split('.').nth(1).and_then(|n| n.parse().ok()).expect("a layer's name")
}

impl Observer for Recorder {
    fn after(&mut self, seen: &Seen<'_>) {
        let mut into = self.into.lock().expect("no test thread panicked with it");
        let mut rows = |name: String, view: View| {
            for (t, lane) in seen.lanes.iter().enumerate() {
                into.rows.entry(name.clone()).or_default().insert(lane.position, seen.row(view, t).to_vec());
            }
        };
        let layer = self.first + self.adds / 2;
        match seen.op {
            Op::Embed { table, .. }
                if self.weights.matrices[table.0 as usize].data.name().starts_with(forced::FORCED) => {}
            Op::Embed { out, .. } => {
                (self.first, self.adds) = (0, 0);
                rows("embed".into(), *out);
            }
            Op::Recall { .. } => self.first = layer_in(self.caches.last().expect("a model has caches")),
            Op::AddRmsNorm { residual, out, .. } => {
                self.adds += 1;
                if self.adds.is_multiple_of(2) {
                    rows(format!("layers.{layer}.hidden"), *residual);
                    rows("normed".into(), *out);
                }
            }
            Op::Project { weight, out, .. } => {
                let name = self.weights.matrices[weight.0 as usize].data.name();
                if name.ends_with("self_attn.o_proj.weight") {
                    rows(format!("layers.{layer}.attn_out"), *out);
                } else if name.ends_with("mlp.down_proj.weight") {
                    rows(format!("layers.{layer}.mlp_out"), *out);
                }
            }
            Op::Combine { out, .. } => rows(format!("layers.{layer}.mlp_out"), *out),
            Op::Keep { x } => rows("final_norm".into(), *x),
            Op::Route { routing, .. } => {
                for (t, lane) in seen.lanes.iter().enumerate() {
                    let chosen = t * routing.chosen..(t + 1) * routing.chosen;
                    let experts = seen.experts[chosen.clone()].iter().map(|&e| u32::from(e)).collect();
                    let name = |part| format!("layers.{layer}.router_{part}");
                    into.choices.entry(name("experts")).or_default().insert(lane.position, experts);
                    into.rows.entry(name("weights")).or_default().insert(lane.position, seen.weights[chosen].to_vec());
                    into.rows.entry(name("logits")).or_default().insert(lane.position, seen.scores[t].clone());
                }
            }
            Op::Select { keys, .. } => {
                assert_eq!(layer_in(&self.caches[usize::from(keys.0)]), layer, "layers are counted right");
                for (t, lane) in seen.lanes.iter().enumerate() {
                    let name = |part| format!("layers.{layer}.index_{part}");
                    into.choices.entry(name("topk")).or_default().insert(lane.position, seen.kept[t].clone());
                    into.rows.entry(name("scores")).or_default().insert(lane.position, seen.scores[t].clone());
                }
            }
            _ => {}
        }
    }
}

/// One greedy answer's tokens, and for every position the bits of the logits that it was chosen from.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// Chosen tokens.
    pub tokens: Vec<u32>,
    /// By position.
    pub logits: BTreeMap<usize, Vec<u32>>,
    /// Drafts verified.
    pub drafts: usize,
    /// Drafts accepted.
    pub accepted: usize,
}

/// Answers `prompt` on `engine`, recording logits.
pub fn answer(engine: &mut Engine, request: &Request) -> Answer {
    answer_with(engine, request, |_| ())
}

/// As [`answer`]; `each` sees the number of each token before the next is computed.
pub fn answer_with(engine: &mut Engine, request: &Request, mut each: impl FnMut(usize)) -> Answer {
    let logits = Arc::<Mutex<BTreeMap<usize, Vec<u32>>>>::default();
    let sink = logits.clone();
    engine.on_logits(Some(Box::new(move |position, logits| {
        let bits = logits.iter().map(|l| l.to_bits()).collect();
        sink.lock().expect("this thread alone").insert(position, bits);
    })));
    let mut tokens = Vec::new();
    let outcome = engine.generate(request, &mut |event| {
        if let Event::Token(token) = event {
            tokens.push(token.id);
            each(tokens.len());
        }
        ControlFlow::Continue(())
    });
    engine.on_logits(None);
    let stats = outcome.expect("a good request").stats;
    let logits = std::mem::take(&mut *logits.lock().expect("this thread alone"));
    // A rejected draft shows the logits behind it to nobody, an answer that ends may show one position more: compare what was chosen.
    let end = request.prompt.len() + tokens.len();
    let logits = logits.into_iter().filter(|(position, _)| *position < end).collect();
    Answer { tokens, logits, drafts: stats.drafts, accepted: stats.accepted }
}

/// A greedy request.
pub fn greedy_request(prompt: &[u32], max_tokens: usize, mtp: bool) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: SamplingParams::default(),
        choice_index: 0,
        max_tokens,
        stop_tokens: Vec::new(),
        mtp,
    }
}

impl std::fmt::Debug for Answer {
    /// Tokens and counts; logits are too long to print.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {} of {} drafts", self.tokens, self.accepted, self.drafts)
    }
}
