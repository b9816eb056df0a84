//! Mappings with a chosen page size, plain reads, CPU clocks, threads.
//!
//! `unsafe` here: system calls on memory of our own, and reads within it.

use core::arch::x86_64::*;
use std::vec::Vec;

use crate::Avx2;

/// Page size of a [`Mapping`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB; huge pages refused.
    Small,
    /// 2 MiB where the kernel can give them (transparent).
    Huge,
}

/// Anonymous memory, touched, aligned to 2 MiB.
pub struct Mapping {
    base: *mut libc::c_void,
    mapped: usize,
    offset: usize,
    len: usize,
}

// SAFETY: an owned mapping, shared as plain bytes.
unsafe impl Sync for Mapping {}

const HUGE: usize = 2 << 20;

impl Mapping {
    /// Maps and touches `len` bytes.
    pub fn new(len: usize, pages: Pages) -> std::io::Result<Mapping> {
        let mapped = len.max(1) + HUGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh anonymous mapping; the result is checked.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let offset = (base as usize).next_multiple_of(HUGE) - base as usize;
        let mut mapping = Mapping { base, mapped, offset, len };
        let advice = if pages == Pages::Huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        // SAFETY: our own mapping. A kernel without the choice refuses, which costs speed only.
        unsafe { libc::madvise(mapping.base, mapping.mapped, advice) };
        mapping.bytes_mut().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        Ok(mapping)
    }

    /// The memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `offset + len` is inside the mapping, which is readable and initialised by the kernel.
        unsafe { std::slice::from_raw_parts(self.base.cast::<u8>().add(self.offset), self.len) }
    }

    /// The memory, to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as `bytes`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast::<u8>().add(self.offset), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no longer borrowed.
        unsafe { libc::munmap(self.base, self.mapped) };
    }
}

/// CPU time of the calling thread, seconds.
pub(super) fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Sum over threads of bytes per CPU second; `work(t)` returns the bytes it read.
pub(super) fn on_threads(threads: usize, work: impl Fn(usize) -> usize + Sync) -> f64 {
    let rate = |t: usize| {
        let start = thread_seconds();
        let bytes = work(t);
        bytes as f64 / (thread_seconds() - start)
    };
    if threads == 1 {
        return rate(0);
    }
    let barrier = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|t| {
                let (rate, barrier) = (&rate, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    rate(t)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a measured workload does not panic")).sum()
    })
}

/// Reads everything once with 256-bit loads; returns the number of bytes.
pub(super) fn read(bytes: &[u8], distance: usize) -> usize {
    assert!(Avx2::detect().is_some());
    // SAFETY: AVX2 was just seen.
    unsafe { read_avx2(bytes, distance) }
}

#[target_feature(enable = "avx2")]
fn read_avx2(bytes: &[u8], distance: usize) -> usize {
    let mut any = [_mm256_setzero_si256(); 4];
    for block in bytes.chunks_exact(256) {
        for half in 0..2 {
            if distance != 0 {
                let far = block.as_ptr().wrapping_add(distance + 128 * half);
                _mm_prefetch::<_MM_HINT_T0>(far.cast());
                _mm_prefetch::<_MM_HINT_T0>(far.wrapping_add(64).cast());
            }
            for (i, any) in any.iter_mut().enumerate() {
                // SAFETY: 256 bytes in the block.
                let v = unsafe { _mm256_loadu_si256(block.as_ptr().add(128 * half + 32 * i).cast()) };
                *any = _mm256_xor_si256(*any, v);
            }
        }
    }
    std::hint::black_box(any);
    bytes.len()
}
