//! Eight f32 lanes, in AVX2 registers or in an array, with the same bits either way.
//!
//! Every kernel of the CPU stage is one generic function over [`Simd`] and is instantiated twice: inside a function compiled for
//! AVX2 + FMA, and plainly. Multiply-add is fused in both (a software `fma` without FMA hardware: right, and slow).

use std::sync::OnceLock;

/// The instruction set that kernels run on; proof that the CPU has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Any x86-64, and the reference for the other.
    Scalar,
    /// AVX2 and FMA. Built by [`Isa::best`] or [`Isa::available`] only.
    Avx2(Avx2),
}

/// Exists only where AVX2 and FMA do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2(());

impl Isa {
    /// The fastest set that this CPU has.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let best = *Isa::available().last().expect("scalar code runs everywhere");
            tracing::debug!(?best, "instruction set");
            best
        })
    }

    /// All sets that this CPU has, slowest first.
    pub fn available() -> Vec<Isa> {
        let mut all = vec![Isa::Scalar];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            all.push(Isa::Avx2(Avx2(())));
        }
        all
    }
}

/// A computation that is generic over the vector type.
pub(crate) trait Kernel {
    /// What it gives.
    type Out;
    /// Runs it; `#[inline(always)]`, so that it is compiled for the instruction set of `V`.
    ///
    /// # Safety
    /// The CPU has what `V` needs.
    unsafe fn run<V: Simd>(self) -> Self::Out;
}

/// Runs a kernel on an instruction set.
pub(crate) fn run<K: Kernel>(isa: Isa, kernel: K) -> K::Out {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn with_avx2<K: Kernel>(kernel: K) -> K::Out {
        // SAFETY: compiled for, and called with, AVX2 and FMA.
        unsafe { kernel.run::<x86::F32x8>() }
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token exists only where AVX2 and FMA do.
        Isa::Avx2(_) => unsafe { with_avx2(kernel) },
        // SAFETY: `Array8` needs nothing.
        _ => unsafe { kernel.run::<Array8>() },
    }
}

/// Eight f32 lanes.
///
/// # Safety
/// Implementations read and write exactly the eight elements that each method names, without assuming alignment. Callers of the
/// AVX2 implementation run on a CPU that has AVX2 and FMA.
pub(crate) unsafe trait Simd: Copy {
    /// All lanes `v`.
    unsafe fn splat(v: f32) -> Self;
    /// `p[0..8]`.
    unsafe fn load(p: *const f32) -> Self;
    /// `p[0..8] = self`.
    unsafe fn store(self, p: *mut f32);
    /// `self · b + c`, rounded once.
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Lane by lane.
    unsafe fn mul(self, b: Self) -> Self;
    /// Eight e4m3 codes (finite) as f32.
    unsafe fn e4m3(p: *const u8) -> Self;
    /// Eight little-endian bf16 as f32.
    unsafe fn bf16(p: *const u8) -> Self;
    /// `((0+4) + (2+6)) + ((1+5) + (3+7))`.
    unsafe fn sum(self) -> f32;
}

/// Eight lanes as an array.
#[derive(Clone, Copy)]
pub(crate) struct Array8([f32; 8]);

// SAFETY: plain element accesses of exactly eight elements.
unsafe impl Simd for Array8 {
    #[inline(always)]
    unsafe fn splat(v: f32) -> Self {
        Array8([v; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller gives eight readable elements.
        Array8(unsafe { p.cast::<[f32; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller gives eight writable elements.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        Array8(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        Array8(std::array::from_fn(|i| self.0[i] * b.0[i]))
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8) -> Self {
        // SAFETY: the caller gives eight readable bytes.
        let codes = unsafe { p.cast::<[u8; 8]>().read_unaligned() };
        Array8(codes.map(model::checkpoint::e4m3_to_f32))
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> Self {
        // SAFETY: the caller gives sixteen readable bytes.
        let halves = unsafe { p.cast::<[u16; 8]>().read_unaligned() };
        Array8(halves.map(|h| f32::from_bits(u32::from(u16::from_le(h)) << 16)))
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + e) + (c + g)) + ((b + f) + (d + h))
    }
}

/// 2^120: a code's bits moved to f32's places are its value times 2^-120, subnormals included.
const E4M3_FACTOR: f32 = f32::from_bits((127 + 120) << 23);

/// AVX2 + FMA.
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use super::{E4M3_FACTOR, Simd};
    use std::arch::x86_64::*;

    /// Eight lanes in a register.
    #[derive(Clone, Copy)]
    pub(crate) struct F32x8(__m256);

    // SAFETY: unaligned loads and stores of exactly eight elements; the trait's callers vouch for AVX2 and FMA, so every
    // intrinsic below may run.
    unsafe impl Simd for F32x8 {
        #[inline(always)]
        unsafe fn splat(v: f32) -> Self {
            // SAFETY: see the impl.
            F32x8(unsafe { _mm256_set1_ps(v) })
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // SAFETY: see the impl.
            F32x8(unsafe { _mm256_loadu_ps(p) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // SAFETY: see the impl.
            unsafe { _mm256_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn mul_add(self, b: Self, c: Self) -> Self {
            // SAFETY: see the impl.
            F32x8(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
        }
        #[inline(always)]
        unsafe fn mul(self, b: Self) -> Self {
            // SAFETY: see the impl.
            F32x8(unsafe { _mm256_mul_ps(self.0, b.0) })
        }
        #[inline(always)]
        unsafe fn e4m3(p: *const u8) -> Self {
            // SAFETY: see the impl; the load reads eight bytes.
            unsafe {
                let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
                let top = _mm256_slli_epi32::<24>(codes);
                let bits = _mm256_and_si256(_mm256_srai_epi32::<4>(top), _mm256_set1_epi32(0x87F0_0000u32 as i32));
                F32x8(_mm256_mul_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(E4M3_FACTOR)))
            }
        }
        #[inline(always)]
        unsafe fn bf16(p: *const u8) -> Self {
            // SAFETY: see the impl; the load reads sixteen bytes.
            unsafe {
                let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                F32x8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves)))
            }
        }
        #[inline(always)]
        unsafe fn sum(self) -> f32 {
            // SAFETY: see the impl.
            unsafe {
                let four = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
    }
}
