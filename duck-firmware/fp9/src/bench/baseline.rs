//! What the kernels are compared with: an fp32 dot product, the *signword* layout, the *lanes* layouts (one row's
//! columns in the eight lanes), and a core's FMA peak. Good code for their layouts, not straw men.
//!
//! `unsafe` here: loads within slices whose lengths are asserted at each entry.

use core::arch::x86_64::*;
use std::vec;
use std::vec::Vec;

use crate::Avx2;
use crate::format::s1e5m3;

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum8(v: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum4(v: [__m256; 4]) -> f32 {
    sum8(_mm256_add_ps(_mm256_add_ps(v[0], v[1]), _mm256_add_ps(v[2], v[3])))
}

/// Dot product of fp32 weights, length a multiple of 64.
pub(super) fn dot_fp32(_: Avx2, weights: &[f32], x: &[f32]) -> f32 {
    assert!(weights.len() == x.len() && x.len().is_multiple_of(64));
    // SAFETY: the token proves AVX2 and FMA; lengths as asserted.
    unsafe { dot_fp32_avx2(weights, x) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn dot_fp32_avx2(weights: &[f32], x: &[f32]) -> f32 {
    let mut sums = [_mm256_setzero_ps(); 8];
    for i in (0..x.len()).step_by(64) {
        for (j, sum) in sums.iter_mut().enumerate() {
            // SAFETY: i + 8 j + 8 <= length.
            unsafe {
                let w = _mm256_loadu_ps(weights.as_ptr().add(i + 8 * j));
                *sum = _mm256_fmadd_ps(w, _mm256_loadu_ps(x.as_ptr().add(i + 8 * j)), *sum);
            }
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    sum4([_mm256_add_ps(a, b), _mm256_add_ps(c, d), _mm256_add_ps(e, f), _mm256_add_ps(g, h)])
}

/// fp9 as 64 magnitude bytes and a u64 of signs, 72 bytes for 64 weights.
///
/// The sign bit of weight `8 j + lane` is bit `8 lane + 7 - j` of the word, so that one widening load per 64 weights
/// brings each lane its byte of signs and an immediate shift selects among the eight.
pub(super) struct Signword {
    data: Vec<u8>,
    k: usize,
}

impl Signword {
    pub(super) fn pack(codes: &[u8], k: usize) -> Self {
        let mut data = Vec::with_capacity(codes.len() / 64 * 72 + 8);
        for block in codes.chunks_exact(64) {
            let mut signs = 0u64;
            for (i, &code) in block.iter().enumerate() {
                let nine = s1e5m3::from_e4m3(code).expect("the suite's codes are finite");
                data.push(nine as u8);
                let (j, lane) = (i / 8, i % 8);
                signs |= u64::from(nine >> 8) << (8 * lane + 7 - j);
            }
            data.extend(signs.to_le_bytes());
        }
        Signword { data, k }
    }

    /// Any weights, as many rows as fit in `bytes`: for speed from memory, where packing real ones would take longer than the rest.
    pub(super) fn pattern(bytes: usize, k: usize) -> Self {
        let row = k / 64 * 72;
        let data = (0..bytes / row * row).map(|i| 0x20 | (i * 37 % 0x40) as u8).collect();
        Signword { data, k }
    }

    pub(super) fn rows(&self) -> usize {
        self.data.len() / (self.k / 64 * 72)
    }

    pub(super) fn dot(&self, _: Avx2, row: usize, x: &[f32]) -> f32 {
        let bytes = self.k / 64 * 72;
        let data = &self.data[row * bytes..][..bytes];
        assert!(x.len() == self.k && self.k.is_multiple_of(64));
        // SAFETY: the token proves AVX2 and FMA; lengths as asserted.
        unsafe { signword_avx2(data, x) * f32::from_bits((127 + 12) << 23) }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn signword_avx2(data: &[u8], x: &[f32]) -> f32 {
    let mut sums = [_mm256_setzero_ps(); 4];
    let sign = _mm256_set1_epi32(i32::MIN);
    for (block, x) in data.chunks_exact(72).zip(x.chunks_exact(64)) {
        // SAFETY: 72 bytes and 64 values.
        unsafe {
            // One byte of signs for each lane, at the top.
            let word = _mm_loadl_epi64(block.as_ptr().add(64).cast());
            let signs = _mm256_slli_epi32::<24>(_mm256_cvtepu8_epi32(word));
            macro_rules! step {
                ($($j:literal)*) => {$(
                    let m = _mm256_cvtepu8_epi32(_mm_loadl_epi64(block.as_ptr().add(8 * $j).cast()));
                    let s = _mm256_and_si256(_mm256_slli_epi32::<$j>(signs), sign);
                    let w = _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32::<20>(m), s));
                    sums[$j % 4] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x.as_ptr().add(8 * $j)), sums[$j % 4]);
                )*};
            }
            step!(0 1 2 3 4 5 6 7);
        }
    }
    sum4(sums)
}

/// e4m3, four codes of one row in a dword at columns `8 j + lane` of a block of 32, decoded by 32-bit shifts.
pub(super) struct LanesE4m3 {
    data: Vec<u8>,
    k: usize,
}

impl LanesE4m3 {
    pub(super) fn pack(codes: &[u8], k: usize) -> Self {
        let mut data = vec![0; codes.len()];
        for (block, out) in codes.chunks_exact(32).zip(data.chunks_exact_mut(32)) {
            for (i, &code) in block.iter().enumerate() {
                out[4 * (i % 8) + 3 - i / 8] = code;
            }
        }
        LanesE4m3 { data, k }
    }

    pub(super) fn dot(&self, _: Avx2, row: usize, x: &[f32]) -> f32 {
        let data = &self.data[row * self.k..][..self.k];
        assert!(x.len() == self.k && self.k.is_multiple_of(32));
        // SAFETY: the token proves AVX2 and FMA; lengths as asserted.
        unsafe { lanes_e4m3_avx2(data, x) * f32::from_bits((127 + 20) << 23) }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn lanes_e4m3_avx2(data: &[u8], x: &[f32]) -> f32 {
    let mut sums = [_mm256_setzero_ps(); 4];
    let mask = _mm256_set1_epi32(0x87F0_0000_u32 as i32);
    for (block, x) in data.chunks_exact(32).zip(x.chunks_exact(32)) {
        // SAFETY: 32 bytes and 32 values.
        unsafe {
            let d = _mm256_loadu_si256(block.as_ptr().cast());
            macro_rules! step {
                ($($j:literal $field:expr;)*) => {$(
                    let w = _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32::<4>($field), mask));
                    sums[$j] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x.as_ptr().add(8 * $j)), sums[$j]);
                )*};
            }
            step!(0 d; 1 _mm256_slli_epi32::<8>(d); 2 _mm256_slli_epi32::<16>(d); 3 _mm256_slli_epi32::<24>(d););
        }
    }
    sum4(sums)
}

/// fp9, 256 weights of one row in nine vectors: three fields in each dword, five more from the spare bits.
pub(super) struct LanesFp9 {
    data: Vec<u8>,
    k: usize,
}

impl LanesFp9 {
    pub(super) fn pack(codes: &[u8], k: usize) -> Self {
        let mut data = Vec::with_capacity(codes.len() / 8 * 9);
        for block in codes.chunks_exact(256) {
            let mut dwords = [[0u32; 8]; 9];
            for (i, &code) in block.iter().enumerate() {
                let nine = u32::from(s1e5m3::from_e4m3(code).expect("the suite's codes are finite"));
                let (field, lane) = (i / 8, i % 8);
                if field < 27 {
                    dwords[field / 3][lane] |= nine << (23 - 9 * (field % 3));
                } else {
                    // The upper five bits go to vector j, the lower four beside others' in vectors 5 to 8, or, for the
                    // last, one bit into each of them.
                    let j = field - 27;
                    dwords[j][lane] |= nine >> 4;
                    for bit in 0..4 {
                        let (vector, place) = if j < 4 { (5 + j, bit + 1) } else { (5 + bit, 0) };
                        dwords[vector][lane] |= (nine >> bit & 1) << place;
                    }
                }
            }
            data.extend(dwords.iter().flatten().flat_map(|d| d.to_le_bytes()));
        }
        LanesFp9 { data, k }
    }

    pub(super) fn dot(&self, _: Avx2, row: usize, x: &[f32]) -> f32 {
        let bytes = self.k / 8 * 9;
        let data = &self.data[row * bytes..][..bytes];
        assert!(x.len() == self.k && self.k.is_multiple_of(256));
        // SAFETY: the token proves AVX2 and FMA; lengths as asserted.
        unsafe { lanes_fp9_avx2(data, x) * f32::from_bits((127 + 12) << 23) }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn lanes_fp9_avx2(data: &[u8], x: &[f32]) -> f32 {
    let mut sums = [_mm256_setzero_ps(); 4];
    let mask = _mm256_set1_epi32(0x8FF0_0000_u32 as i32);
    let low = _mm256_set1_epi32(0x0780_0000);
    let one = _mm256_set1_epi32(1);
    for (block, x) in data.chunks_exact(288).zip(x.chunks_exact(256)) {
        // SAFETY: vectors 0 to 8 of 288 bytes, fields 0 to 31 of 256 values.
        let load = |i: usize| unsafe { _mm256_loadu_si256(block.as_ptr().add(32 * i).cast()) };
        // SAFETY: as above.
        let values = |field: usize| unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * field)) };
        macro_rules! add {
            ($field:expr, $at:expr) => {
                let w = _mm256_castsi256_ps(_mm256_and_si256(_mm256_srai_epi32::<3>($field), mask));
                sums[$at % 4] = _mm256_fmadd_ps(w, values($at), sums[$at % 4]);
            };
        }
        macro_rules! step {
            ($($i:literal)*) => {$(
                let d = load($i);
                add!(d, 3 * $i);
                add!(_mm256_slli_epi32::<9>(d), 3 * $i + 1);
                add!(_mm256_slli_epi32::<18>(d), 3 * $i + 2);
            )*};
        }
        step!(0 1 2 3 4 5 6 7 8);
        macro_rules! spare {
            ($($j:literal)*) => {$(
                let tail = _mm256_and_si256(_mm256_slli_epi32::<22>(load(5 + $j)), low);
                add!(_mm256_or_si256(_mm256_slli_epi32::<27>(load($j)), tail), 27 + $j);
            )*};
        }
        spare!(0 1 2 3);
        // Bit b of the last field's lower four is bit 0 of vector 5 + b.
        let bit = |i: usize| _mm256_and_si256(load(i), one);
        let pair0 = _mm256_or_si256(bit(5), _mm256_slli_epi32::<1>(bit(6)));
        let pair1 = _mm256_or_si256(_mm256_slli_epi32::<2>(bit(7)), _mm256_slli_epi32::<3>(bit(8)));
        let tail = _mm256_slli_epi32::<23>(_mm256_or_si256(pair0, pair1));
        add!(_mm256_or_si256(_mm256_slli_epi32::<27>(load(4)), tail), 31);
    }
    sum4(sums)
}

/// `n` 256-bit FMAs in ten independent chains, all in registers.
pub(super) fn fma_peak(_: Avx2, n: usize) {
    // SAFETY: the token proves AVX2 and FMA.
    unsafe { fma_peak_avx2(n) }
}

#[target_feature(enable = "avx2,fma")]
fn fma_peak_avx2(n: usize) {
    let mut sums = [_mm256_set1_ps(1.0); 10];
    let (a, b) = (std::hint::black_box(_mm256_set1_ps(1.0)), std::hint::black_box(_mm256_set1_ps(1e-9)));
    for _ in 0..n / 10 {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, a, b);
        }
    }
    std::hint::black_box(sums);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::e4m3;

    #[test]
    fn every_baseline_computes_the_product() {
        let token = Avx2::detect().expect("the measurements need AVX2");
        let k = 512;
        let codes = super::super::random_codes(3 * k, false);
        let x: Vec<f32> = (0..k).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut prepared = x.clone();
        crate::prepare(crate::Format::E4m3, &mut prepared);
        for row in 0..3 {
            let codes_of_row = &codes[row * k..][..k];
            let weights: Vec<f32> = codes_of_row.iter().map(|&c| e4m3::decode(c)).collect();
            let exact: f64 = weights.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
            for (name, found) in [
                ("fp32", dot_fp32(token, &weights, &x)),
                ("signword", Signword::pack(&codes, k).dot(token, row, &prepared)),
                ("lanes e4m3", LanesE4m3::pack(&codes, k).dot(token, row, &prepared)),
                ("lanes fp9", LanesFp9::pack(&codes, k).dot(token, row, &prepared)),
            ] {
                assert!((f64::from(found) - exact).abs() < 1e-3, "{name}, row {row}: {found} for {exact}");
            }
        }
    }
}
