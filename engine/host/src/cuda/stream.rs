//! Streams (what is enqueued on one runs in order), graphs of captured work, and events for timing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::abi::Plain;
use super::device::{Device, failed};
use super::error::CudaError;
use super::memory::Pinned;

/// A queue of work.
pub(crate) struct Stream {
    handle: sys::CUstream,
    device: Arc<Device>,
}

// SAFETY: a handle of the driver, which may be used from any thread that binds the context.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Stream, CudaError> {
        device.bind()?;
        let handle = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(|error| failed("making a stream", error))?;
        Ok(Stream { handle, device: device.clone() })
    }

    pub(crate) fn handle(&self) -> sys::CUstream {
        self.handle
    }

    /// Waits until all of it has run.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(self.handle) }.map_err(|error| failed("running kernels", error))
    }

    /// Whether all of it has run.
    pub(crate) fn is_idle(&self) -> Result<bool, CudaError> {
        // SAFETY: the stream lives.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true).map_err(|error| failed("running kernels", error)),
        }
    }

    /// Waits until all of it has run, but not for a card that never answers.
    pub(crate) fn finish_within(&self, bound: Duration) -> Result<(), CudaError> {
        let started = Instant::now();
        while !self.is_idle()? {
            if started.elapsed() > bound {
                return Err(CudaError::Timeout { what: "a pass to end".into(), seconds: bound.as_secs() });
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Enqueues a copy to the card of `count` values from `from` on.
    pub(crate) fn upload<T: Plain>(
        &self,
        to: u64,
        pinned: &Pinned<T>,
        from: usize,
        count: usize,
    ) -> Result<(), CudaError> {
        let values = &pinned.get()[from..from + count];
        // SAFETY: `to` has room by the caller's layout; the pinned memory outlives the stream's work, and is not written before it is through.
        unsafe { result::memcpy_htod_async(to, values, self.handle) }
            .map_err(|error| failed("copying to the GPU", error))
    }

    /// Enqueues a copy from the card.
    pub(crate) fn download<T: Plain>(&self, from: u64, to: &mut Pinned<T>, count: usize) -> Result<(), CudaError> {
        // SAFETY: `from` has that many by the caller's layout; the caller waits before it reads.
        unsafe { result::memcpy_dtoh_async(&mut to.get_mut()[..count], from, self.handle) }
            .map_err(|error| failed("copying from the GPU", error))
    }

    /// Copies from the card, after everything enqueued before.
    pub(crate) fn read<T: Plain>(&self, from: u64, to: &mut [T]) -> Result<(), CudaError> {
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: `from` has that many by the caller's layout; the copy is over before this returns.
        unsafe { result::memcpy_dtoh_async(to, from, self.handle) }
            .map_err(|error| failed("copying from the GPU", error))?;
        self.synchronize()
    }

    /// Enqueues setting `words` words of four bytes.
    pub(crate) fn set(&self, at: u64, value: u32, words: usize) -> Result<(), CudaError> {
        // SAFETY: within memory by the caller's layout.
        unsafe { sys::cuMemsetD32Async(at, value, words, self.handle) }
            .result()
            .map_err(|error| failed("filling GPU memory", error))
    }

    /// Records what `enqueue` enqueues instead of running it.
    pub(crate) fn capture(&self, enqueue: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.handle, mode) }
            .map_err(|error| failed("capturing a graph", error))?;
        let enqueued = enqueue();
        // SAFETY: a capture is under way; it has to be ended whatever happened.
        let graph = unsafe { result::stream::end_capture(self.handle) };
        enqueued?;
        let graph = graph.map_err(|error| failed("capturing a graph", error))?;
        // SAFETY: `graph` was just captured; it is not needed once instantiated.
        let exec = unsafe {
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            exec
        };
        let exec = exec.map_err(|error| failed("making a graph", error))?;
        let graph = Graph { exec, device: self.device.clone() };
        // SAFETY: both live. Without this the first launch would allocate.
        unsafe { result::graph::upload(exec, self.handle) }.map_err(|error| failed("loading a graph", error))?;
        Ok(graph)
    }

    /// Enqueues a graph.
    pub(crate) fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        // SAFETY: both live.
        unsafe { result::graph::launch(graph.exec, self.handle) }.map_err(|error| failed("launching a graph", error))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once; what is on it still runs.
            let _ = unsafe { result::stream::destroy(self.handle) };
        }
    }
}

/// Captured work.
pub(crate) struct Graph {
    exec: sys::CUgraphExec,
    device: Arc<Device>,
}

// SAFETY: a handle of the driver, used by one thread at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made by `capture`, destroyed once.
            let _ = unsafe { result::graph::exec_destroy(self.exec) };
        }
    }
}

/// A point in a stream, for timing.
pub(crate) struct Event {
    handle: sys::CUevent,
    device: Arc<Device>,
}

// SAFETY: a handle of the driver, which may be used from any thread that binds the context.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Event, CudaError> {
        device.bind()?;
        let handle = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)
            .map_err(|error| failed("making an event", error))?;
        Ok(Event { handle, device: device.clone() })
    }

    pub(crate) fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both live.
        unsafe { result::event::record(self.handle, stream.handle) }
            .map_err(|error| failed("recording an event", error))
    }

    /// Milliseconds from `start` to this; both have happened.
    pub(crate) fn since(&self, start: &Event) -> Result<f32, CudaError> {
        // SAFETY: both live.
        unsafe { result::event::elapsed(start.handle, self.handle) }.map_err(|error| failed("timing", error))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: made by `new`, destroyed once.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}
