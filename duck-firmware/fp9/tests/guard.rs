//! Reads and writes stay inside their buffers: each buffer ends (or begins) at a page that traps.
#![cfg(unix)]

mod common;

use common::{FORMATS, Random, Sample};
use fp9::{Inputs, Isa, Job, Matrix, Prefetch, Scratch, multiply};

/// A mapping between two inaccessible pages.
struct Guarded {
    base: *mut u8,
    page: usize,
    inner: usize,
}

impl Guarded {
    fn new(bytes: usize) -> Guarded {
        // SAFETY: plain queries and an anonymous mapping of our own; results are checked.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let inner = bytes.next_multiple_of(page).max(page);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let base = libc::mmap(std::ptr::null_mut(), inner + 2 * page, libc::PROT_NONE, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast::<u8>();
            let rc = libc::mprotect(base.add(page).cast(), inner, libc::PROT_READ | libc::PROT_WRITE);
            assert_eq!(rc, 0);
            Guarded { base, page, inner }
        }
    }

    /// `len` values that end right before the trap, or begin right after the other one.
    fn slice<T: Copy>(&mut self, len: usize, at_end: bool) -> &mut [T] {
        let bytes = len * size_of::<T>();
        assert!(bytes <= self.inner);
        let offset = self.page + if at_end { self.inner - bytes } else { 0 };
        // SAFETY: inside the accessible part; zero bytes are valid for the plain numbers used here, and page ends
        // are multiples of every alignment that divides `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(offset).cast(), len) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: our own mapping, no longer borrowed.
        unsafe { libc::munmap(self.base.cast(), self.inner + 2 * self.page) };
    }
}

#[test]
fn no_kernel_touches_a_byte_outside_its_buffers() {
    let isa = Isa::detect();
    for format in FORMATS {
        for (rows, k) in [(32, 64), (64, 128), (64, 192), (96, 256)] {
            let sample = Sample::random(format, rows, k, 0, &mut Random(9));
            for count in [1usize, 2, 3, 6, 7, 13] {
                for at_end in [false, true] {
                    let mut weights = Guarded::new(sample.data.len());
                    let data: &mut [u8] = weights.slice(sample.data.len(), at_end);
                    data.copy_from_slice(&sample.data);
                    let mut inputs = Guarded::new(count * k * 4);
                    let x: &mut [f32] = inputs.slice(count * k, at_end);
                    x.fill(1.0);
                    let mut outputs = Guarded::new(count * rows * 4);
                    let out: &mut [f32] = outputs.slice(count * rows, at_end);
                    let matrix = Matrix::new(format, rows, k, data, &sample.scales, 0).unwrap();
                    let mut job = Job::new(&matrix, Inputs::strided(x, k, count));
                    job.prefetch = Prefetch { distance: 8192, next: &[] };
                    multiply(isa, &job, out, rows, &mut Scratch::new()).unwrap();
                    // Resuming reads the outputs as well; a part of the rows must leave the rest alone.
                    out.fill(0.5);
                    job.rows = rows - 32..rows;
                    job.columns = k / 128 * 128..k;
                    multiply(isa, &job, &mut out[..(count - 1) * rows + 32], rows, &mut Scratch::new()).unwrap();
                    if rows > 32 {
                        assert_eq!(out[32], 0.5);
                    }
                }
            }
        }
    }
}
