//! A stage with its ducks, driven segment by segment.

use std::sync::Arc;

use flock::Flock;
use host::cuda::{CudaOptions, CudaStage};
use host::stage::{Lane, Layers, PassId, PassSpec, Progress, SequenceId, Stage};
use model::Numerics;
use model::program::Model;

use crate::{gpu_stage, options};

/// A stage with its ducks.
pub(crate) struct Bench {
    pub(crate) stage: CudaStage,
    pub(crate) flock: Flock,
}

impl Bench {
    pub(crate) fn new(model: &Model, numerics: Numerics, change: impl FnOnce(&mut CudaOptions)) -> Bench {
        let flock = Flock::in_process(model, 3, numerics).expect("a possible number of ducks");
        let mut options = options(model, numerics, flock.sources());
        change(&mut options);
        Bench { stage: gpu_stage(Arc::new(model.clone()), options), flock }
    }

    /// One segment, and the ducks' part of it.
    pub(crate) fn segment(&mut self, pass: PassId, segment: usize) {
        let ticket = self.stage.submit(pass, segment).unwrap_or_else(|error| panic!("segment {segment}: {error}"));
        while self.stage.poll(&ticket).unwrap_or_else(|error| panic!("segment {segment}: {error}")) == Progress::Running
        {
            std::thread::yield_now();
        }
        if let Some(io) = &ticket.io {
            self.flock.submit(io.clone()).expect("a well-formed step");
            while !io.is_summed() {
                self.flock.poll().expect("in-process ducks do not fail");
            }
        }
    }

    pub(crate) fn run(&mut self, layers: Layers, lanes: Vec<Lane>) -> PassId {
        let logits = (0..lanes.len()).collect();
        let pass = self.stage.begin(&PassSpec { layers, lanes, logits }).unwrap_or_else(|error| panic!("{error}"));
        (0..self.stage.segments(layers)).for_each(|segment| self.segment(pass, segment));
        pass
    }

    /// Bits of the logits of one pass, which is then ended.
    pub(crate) fn pass(&mut self, layers: Layers, lanes: Vec<Lane>) -> Vec<Vec<u32>> {
        let count = lanes.len();
        let pass = self.run(layers, lanes);
        let row = |t| self.stage.logits(pass, t).expect("asked for").iter().map(|v| v.to_bits()).collect();
        let rows = (0..count).map(row).collect();
        self.stage.end(pass);
        rows
    }

    /// Bits of the logits of all tokens, run in passes of `chunk` lanes.
    pub(crate) fn logits(&mut self, sequence: SequenceId, tokens: &[u32], chunk: usize) -> Vec<Vec<u32>> {
        let passes = tokens.chunks(chunk).enumerate();
        passes.flat_map(|(i, part)| self.pass(Layers::Main, lanes(sequence, i * chunk, part))).collect()
    }

    /// The same, with the MTP layer's logits behind each pass, as a prompt is read.
    pub(crate) fn with_drafts(&mut self, sequence: SequenceId, tokens: &[u32], chunk: usize) -> [Vec<Vec<u32>>; 2] {
        let (mut main, mut drafts) = (Vec::new(), Vec::new());
        for (i, part) in tokens.chunks(chunk).enumerate() {
            main.extend(self.pass(Layers::Main, lanes(sequence, i * chunk, part)));
            let end = i * chunk + part.len();
            if self.stage.segments(Layers::Mtp) > 0 && drafts.len() + 1 < end {
                let from = drafts.len();
                drafts.extend(self.pass(Layers::Mtp, lanes(sequence, from, &tokens[from + 1..end])));
            }
        }
        [main, drafts]
    }
}

pub(crate) fn lanes(sequence: SequenceId, first: usize, tokens: &[u32]) -> Vec<Lane> {
    tokens.iter().enumerate().map(|(i, &token)| Lane { sequence, position: first + i, token }).collect()
}

/// Where two sets of logits first differ.
pub(crate) fn first_difference(got: &[Vec<u32>], want: &[Vec<u32>]) -> Option<String> {
    let differing = got.iter().zip(want).filter(|(g, w)| g != w).count();
    got.iter().zip(want).enumerate().find(|(_, (g, w))| g != w).map(|(position, (g, w))| {
        let element = g.iter().zip(w).position(|(a, b)| a != b).expect("rows differ");
        let [g, w] = [g[element], w[element]].map(f32::from_bits);
        format!("{differing} rows, the first at position {position}, logit {element}: {g} and {w}")
    })
}
