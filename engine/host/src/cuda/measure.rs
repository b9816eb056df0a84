//! Times of passes and kernels on the card, and the floor under them: reading the same bytes once.
//!
//! For a stage without ducks ([`CudaOptions::bound`](super::CudaOptions::bound) zero), whose weights may be random. The caches are filled with random
//! numbers up to the measured positions, since nothing is worth computing for a measurement.

use std::collections::BTreeMap;

use super::abi::{BF16, E4M3, F32, Fill};
use super::caches::Caches;
use super::error::CudaError;
use super::kernels::{Call, Kernel, Kernels, Parameters};
use super::memory::Memory;
use super::pass::Pass;
use super::stage::CudaStage;
use super::stream::{Event, Stream};
use crate::StageError;
use crate::stage::{Lane, Layers, PassId, PassSpec, Stage};

/// Bytes that the floor is measured with: much more than any cache has.
const FLOOR_BYTES: usize = 4 << 30;

/// One kernel's part of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelTime {
    /// Which.
    pub kernel: Kernel,
    /// Launches in a pass.
    pub launches: usize,
    /// Seconds of all its launches together.
    pub seconds: f64,
    /// Bytes of weights that they read.
    pub bytes: u64,
}

/// A pass to be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    /// Which program.
    pub layers: Layers,
    /// Lanes, at neighbouring positions of one sequence.
    pub lanes: usize,
    /// Position of the first lane: so many keys are cached.
    pub position: usize,
    /// Lanes whose logits are computed, the last ones.
    pub logits: usize,
    /// Passes, of which the fastest kernels or the mean pass are taken.
    pub repeats: usize,
}

impl CudaStage {
    /// Bytes in a second with which the card reads what is in no cache, over 4 GiB or what is free.
    ///
    /// # Errors
    /// A card that failed, or has no memory left to read.
    pub fn measure_bandwidth(&self) -> Result<f64, StageError> {
        self.device.bind()?;
        let (free, _) = self.device.memory()?;
        let bytes = usize::try_from(free / 2).unwrap_or(FLOOR_BYTES).min(FLOOR_BYTES) / 4096 * 4096;
        let memory = Memory::new(&self.device, "memory to read", bytes)?;
        let sink = Memory::new(&self.device, "a word", 4)?;
        let stream = Stream::new(&self.device)?;
        stream.set(memory.address(), 0, bytes / 4)?;
        let call = Call {
            kernel: Kernel::ReadAll,
            grid: [self.device.properties().processors * 4, 1, 1],
            threads: Kernel::ReadAll.threads(),
            shared: 0,
            parameters: Parameters::ReadAll(memory.address(), bytes as u64 / 16, sink.address()),
            early: false,
        };
        let mut best = f64::INFINITY;
        for _ in 0..8 {
            let seconds = timed(self, &stream, || self.kernels.launch(&stream, &call, false))?;
            best = best.min(seconds);
        }
        Ok(bytes as f64 / best)
    }

    /// Seconds of one pass on the card, from its first kernel to its last: the mean of `repeats`.
    ///
    /// # Errors
    /// A card that failed; a stage with ducks.
    pub fn measure_pass(&mut self, what: &Measurement) -> Result<f64, StageError> {
        self.measured(what, |stage, pass| {
            let lowered = stage.programs.get(pass.layers).expect("`begin` checks that there is one");
            let launches = || lowered.launches();
            if what.lanes > super::abi::FEW || !stage.options.graphs {
                stage.enqueue(pass, launches())?;
                let all = || (0..what.repeats).try_for_each(|_| stage.enqueue(pass, launches()));
                return Ok(timed(stage, &pass.area.stream, all)? / what.repeats as f64);
            }
            stage.replay(pass)?;
            let stream = &pass.area.stream;
            let seconds = {
                let graph = stage.graph(pass);
                timed(stage, stream, || (0..what.repeats).try_for_each(|_| stream.replay(graph)))?
            };
            Ok(seconds / what.repeats as f64)
        })
    }

    /// Seconds of each kernel in one pass, launched one after another with an event between: the least of `repeats` for each launch. An event costs
    /// about a microsecond, so the sum is more than a pass takes.
    ///
    /// # Errors
    /// A card that failed; a stage with ducks.
    pub fn measure_kernels(&mut self, what: &Measurement) -> Result<Vec<KernelTime>, StageError> {
        self.measured(what, |stage, pass| {
            let lowered = stage.programs.get(pass.layers).expect("`begin` checks that there is one");
            let calls = stage.binder(pass).calls(lowered.launches(), true);
            let events = (0..=calls.len()).map(|_| Event::new(&stage.device)).collect::<Result<Vec<_>, _>>()?;
            let mut best = vec![f64::INFINITY; calls.len()];
            for _ in 0..what.repeats {
                let stream = &pass.area.stream;
                events[0].record(stream)?;
                for (call, event) in calls.iter().zip(&events[1..]) {
                    stage.kernels.launch(stream, call, false)?;
                    event.record(stream)?;
                }
                stream.synchronize()?;
                for (best, pair) in best.iter_mut().zip(events.windows(2)) {
                    *best = best.min(f64::from(pair[1].since(&pair[0])?) / 1e3);
                }
            }
            let mut times: BTreeMap<&str, KernelTime> = BTreeMap::new();
            for (call, seconds) in calls.iter().zip(best) {
                let start = KernelTime { kernel: call.kernel, launches: 0, seconds: 0.0, bytes: 0 };
                let time = times.entry(call.kernel.name()).or_insert(start);
                time.launches += 1;
                time.seconds += seconds;
                time.bytes += weight_bytes(call);
            }
            Ok(times.into_values().collect())
        })
    }

    /// Bytes of weights that a pass reads, each once.
    pub fn pass_bytes(&self, layers: Layers) -> u64 {
        let Some(lowered) = self.programs.get(layers) else { return 0 };
        lowered
            .launches()
            .flat_map(|launch| match launch {
                super::task::Launch::Linears(list) => &list[..],
                _ => &[],
            })
            .map(|task| {
                let elements = (task.groups * task.rows * task.k) as u64;
                bytes_of(elements, self.weights.matrix(task.weight).dtype)
            })
            .sum()
    }

    /// Begins a pass at the measured positions and ends it when `measure` is through.
    fn measured<R>(
        &mut self,
        what: &Measurement,
        measure: impl FnOnce(&CudaStage, &mut Pass) -> Result<R, CudaError>,
    ) -> Result<R, StageError> {
        if !self.options.bound.is_zero() {
            return Err(CudaError::Unsupported("a stage that waits for ducks cannot be measured alone".into()).into());
        }
        let sequence = self.open(what.position + what.lanes)?;
        let opened = self.caches.get_mut(sequence).expect("just opened");
        (opened.len, opened.mtp_len) = (what.position, what.position);
        opened.keep(what.position, what.lanes);
        let lanes =
            (0..what.lanes).map(|i| Lane { sequence, position: what.position + i, token: (i % 7) as u32 }).collect();
        let logits = (what.lanes - what.logits.min(what.lanes)..what.lanes).collect();
        let begun = self.begin(&PassSpec { layers: what.layers, lanes, logits });
        let result = begun.and_then(|id: PassId| {
            let mut pass = self.passes.remove(&id).expect("just begun");
            pass.done = false;
            let measured = self.fill_caches(&pass).and_then(|()| measure(self, &mut pass));
            self.passes.insert(id, pass);
            self.noted(id, measured)
        });
        self.close(sequence);
        result
    }

    fn fill_caches(&self, pass: &Pass) -> Result<(), CudaError> {
        fill(&self.kernels, &pass.area.stream, &self.caches, self.options.numerics == model::Numerics::Exact)
    }
}

fn fill(kernels: &Kernels, stream: &Stream, caches: &Caches, exact: bool) -> Result<(), CudaError> {
    for (seed, (at, bytes)) in caches.regions().enumerate() {
        let (dtype, width) = if exact { (F32, 4) } else { (BF16, 2) };
        let fill = Fill { at, count: (bytes / width) as u64, dtype, seed: seed as u32, scale: 1.0, _pad: 0 };
        let (kernel, parameters) = (Kernel::Fill, Parameters::Fill(fill));
        let call = Call { kernel, grid: [4096, 1, 1], threads: kernel.threads(), shared: 0, parameters, early: false };
        kernels.launch(stream, &call, false)?;
    }
    stream.synchronize()
}

/// Seconds that the card takes for what `enqueue` enqueues.
fn timed(
    stage: &CudaStage,
    stream: &Stream,
    enqueue: impl FnOnce() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let (start, end) = (Event::new(&stage.device)?, Event::new(&stage.device)?);
    start.record(stream)?;
    enqueue()?;
    end.record(stream)?;
    stream.synchronize()?;
    Ok(f64::from(end.since(&start)?) / 1e3)
}

fn bytes_of(elements: u64, dtype: u32) -> u64 {
    match dtype {
        // With a scale of four bytes for each block of 128 by 128.
        E4M3 => elements + elements / 4096,
        BF16 => elements * 2,
        _ => elements * 4,
    }
}

fn weight_bytes(call: &Call) -> u64 {
    let Parameters::Linears(launch) = &call.parameters else { return 0 };
    let list = &launch.list[..launch.count as usize];
    list.iter().map(|l| bytes_of(u64::from(l.groups) * u64::from(l.rows) * u64::from(l.k), l.dtype)).sum()
}
