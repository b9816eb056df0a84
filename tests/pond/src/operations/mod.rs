//! Every operation of a stage against the plain [`reference`], from the inputs that the same stage showed: nothing adds up from one operation to
//! the next, so the limits are those of one operation.
//!
//! The [`Checker`] sees every operation's result and keeps it, so that the inputs of the next are at hand whatever the stage makes of its own
//! copies; caches are kept from what [`Op::Append`] was given, as the mode stores it. Of a pass with many lanes some are computed again,
//! the first and last ones always.
//!
//! Sums and functions are the reference's own; single roundings (to bf16, through e4m3) are `model::numerics`', which has tests of its own and is held
//! against another program's values in `golden_fp8`.

mod checker;
pub mod compare;
pub mod reference;

use std::sync::{Arc, Mutex};

use flock::Flock;
use host::StageError;
use host::observe::Observer;
use host::stage::{Lane, Layers, PassSpec, Progress, SequenceId, Stage};
use model::Numerics;
use model::numerics::quantise;
use model::program::Model;
use model::step::{StepInput, StepIo};

use checker::Checker;
use compare::{Exact, Findings, Place};

/// What observer and runner share.
#[derive(Default)]
struct Shared {
    findings: Findings,
    /// The step whose sums the next segment combines.
    io: Option<Arc<StepIo>>,
    /// Of the pass's latest step: what shall be handed over, by lane.
    handed: Vec<Handed>,
    /// The head's exact results, by lane.
    logits: Vec<Option<Exact>>,
}

/// One lane of a step's input.
#[derive(Clone, Default)]
struct Handed {
    hidden: Vec<f32>,
    experts: Vec<u16>,
    weights: Vec<f32>,
}

/// Whether a lane is computed again: every one of few, and some of many.
fn checked(lane: usize, lanes: usize) -> bool {
    lanes <= 9 || lane < 2 || lane + 2 >= lanes || lane % 13 == 5
}

/// Runs passes of so many lanes, each followed by the MTP layer as a prompt is read, and compares every operation. `make` makes a stage from the
/// model, the sources of sums that a step has, and the observer.
pub fn check(
    subject: &str,
    model: Model,
    numerics: Numerics,
    passes: &[usize],
    make: impl FnOnce(Arc<Model>, usize, Box<dyn Observer>) -> Box<dyn Stage>,
) -> Findings {
    let flock = Flock::in_process(&model, 3, numerics).expect("a possible number of ducks");
    let model = Arc::new(model);
    let shared = Arc::<Mutex<Shared>>::default();
    let subject = format!("{subject} {}", numerics.name());
    let checker = Checker::new(subject.clone(), model.clone(), numerics, shared.clone());
    let mut stage = make(model.clone(), flock.sources(), Box::new(checker));
    let length = passes.iter().sum::<usize>() + 1;
    let sequence = stage.open(length).expect("positions that the model has");
    let tokens = tokens(&model, length);
    let mut runner = Runner { subject, stage, flock, shared: shared.clone(), numerics };
    let (mut start, mut drafted) = (0, 0);
    for &count in passes {
        runner.pass(Layers::Main, lanes(sequence, start, &tokens[start..start + count]));
        start += count;
        // The last position's next token is not known yet.
        if runner.stage.segments(Layers::Mtp) > 0 && drafted + 1 < start {
            runner.pass(Layers::Mtp, lanes(sequence, drafted, &tokens[drafted + 1..start]));
            drafted = start - 1;
        }
    }
    drop(runner);
    let mut shared = shared.lock().expect("no test thread panicked with it");
    std::mem::take(&mut shared.findings)
}

fn lanes(sequence: SequenceId, first: usize, tokens: &[u32]) -> Vec<Lane> {
    tokens.iter().enumerate().map(|(i, &token)| Lane { sequence, position: first + i, token }).collect()
}

/// Seeded tokens, none of them 0 or 1.
fn tokens(model: &Model, count: usize) -> Vec<u32> {
    let mut random = crate::random::Random(5);
    (0..count).map(|_| 2 + random.below(model.dims.vocab as u64 - 2) as u32).collect()
}

struct Runner {
    subject: String,
    stage: Box<dyn Stage>,
    flock: Flock,
    shared: Arc<Mutex<Shared>>,
    numerics: Numerics,
}

impl Runner {
    fn pass(&mut self, layers: Layers, lanes: Vec<Lane>) {
        let logits = (0..lanes.len()).collect();
        let spec = PassSpec { layers, lanes: lanes.clone(), logits };
        let pass = self.stage.begin(&spec).unwrap_or_else(|error| panic!("{}: {error}", self.subject));
        for segment in 0..self.stage.segments(layers) {
            let subject = &self.subject;
            let fail = |error: StageError| -> String { format!("{subject}, segment {segment}: {error}") };
            let ticket = self.stage.submit(pass, segment).map_err(fail).unwrap_or_else(|fault| panic!("{fault}"));
            let mut running = || self.stage.poll(&ticket).map_err(fail).unwrap_or_else(|fault| panic!("{fault}"));
            while running() == Progress::Running {
                std::thread::yield_now();
            }
            if let Some(io) = &ticket.io {
                self.flock.submit(io.clone()).expect("a well-formed step");
                while !io.is_summed() {
                    self.flock.poll().expect("in-process ducks do not fail");
                }
                self.check_input(io, segment as u16, &lanes);
            }
            self.shared.lock().expect("no test thread panicked with it").io = ticket.io;
        }
        let mut shared = self.shared.lock().expect("no test thread panicked with it");
        let wanted = std::mem::take(&mut shared.logits);
        assert_eq!(wanted.len(), lanes.len(), "{}: the head was seen", self.subject);
        for (t, want) in wanted.iter().enumerate() {
            let Some(want) = want else { continue };
            let got = self.stage.logits(pass, t).expect("asked for");
            shared.findings.row(&self.place("Logits", 0, t, &lanes), got, want);
        }
        shared.io = None;
        drop(shared);
        self.stage.end(pass);
    }

    fn place(&self, op: &str, layer: u16, lane: usize, lanes: &[Lane]) -> Place {
        Place { subject: self.subject.clone(), layer, op: op.into(), lane: [lane, lanes.len(), lanes[lane].position] }
    }

    /// What travels to the ducks is, bit for bit, what the router saw and chose.
    fn check_input(&mut self, io: &StepIo, segment: u16, lanes: &[Lane]) {
        let mut shared = self.shared.lock().expect("no test thread panicked with it");
        let input: &StepInput = io.input.get().expect("a ticket's input is published");
        let handed = std::mem::take(&mut shared.handed);
        assert_eq!(handed.len(), lanes.len(), "a step's router is shown to the observer for every lane");
        let (width, chosen) = (input.hidden.len() / lanes.len(), input.experts.len() / lanes.len());
        for (t, mut want) in handed.into_iter().enumerate() {
            if self.numerics == Numerics::Fp8 {
                quantise(&mut want.hidden);
            }
            let place = self.place("hand-over", segment, t, lanes);
            let got = &input.hidden[t * width..][..width];
            if let Some(i) = (0..width).find(|&i| got[i].to_bits() != want.hidden[i].to_bits()) {
                let [got, want] = [got[i], want.hidden[i]];
                shared.findings.fault(&place, format_args!("column {i} is {got:e} instead of {want:e}"));
            }
            let (experts, weights) = (&input.experts[t * chosen..][..chosen], &input.weights[t * chosen..][..chosen]);
            if experts != want.experts || weights != want.weights {
                let what = format!("{experts:?} {weights:?} instead of {:?} {:?}", want.experts, want.weights);
                shared.findings.fault(&place, what);
            }
        }
    }
}
