//! Every kernel against the definition and against each other, bit for bit.

mod common;

use common::{FORMATS, Random, Sample};
use fp9::{COL_BLOCK, Error, Format, Inputs, Isa, Job, Matrix, Prefetch, ROW_TILE, Scratch, multiply, prepare};
use proptest::prelude::*;

fn inputs(format: Format, k: usize, stride: usize, count: usize, random: &mut Random) -> (Vec<f32>, Vec<f32>) {
    let plain: Vec<f32> = (0..stride * count.max(1) + k).map(|_| random.unit() * 8.0).collect();
    let mut prepared = plain.clone();
    prepare(format, &mut prepared);
    (plain, prepared)
}

/// Asserts that both hold the same bits, and says where they first differ.
fn same_bits(expected: &[f32], found: &[f32], what: &str) -> Result<(), TestCaseError> {
    prop_assert_eq!(expected.len(), found.len());
    for (i, (e, f)) in expected.iter().zip(found).enumerate() {
        prop_assert!(e.to_bits() == f.to_bits(), "{}: element {}: expected {:e}, found {:e}", what, i, e, f);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_kernel_gives_the_bits_of_the_definition(
        which in 0usize..3, tiles in 1usize..6, steps in 1usize..8, phase in 0usize..4,
        count in 0usize..20, pad in 0usize..5, weighted: bool, distance in prop::sample::select(vec![0usize, 64, 8192]),
        seed: u64,
    ) {
        let random = &mut Random(seed);
        let (format, rows, k) = (FORMATS[which], tiles * ROW_TILE, steps * 64);
        let sample = Sample::random(format, rows, k, phase * ROW_TILE, random);
        let matrix = sample.matrix();
        let (stride, out_stride) = (k + pad, rows + pad);
        let (plain, prepared) = inputs(format, k, stride, count, random);
        let factors: Vec<f32> = (0..count).map(|_| random.unit()).collect();
        let next = [0u8; 100];

        let start = random.below(tiles + 1);
        let end = start + random.below(tiles - start + 1);
        let mut job = Job::new(&matrix, Inputs::strided(&prepared, stride, count));
        job.rows = start * ROW_TILE..end * ROW_TILE;
        job.factors = weighted.then_some(&factors);
        job.prefetch = Prefetch { distance, next: if pad % 2 == 0 { &next } else { &[] } };

        const UNTOUCHED: f32 = 1234.5;
        let mut expected = vec![UNTOUCHED; out_stride * count.max(1)];
        for v in 0..count {
            for row in job.rows.clone() {
                let sum = sample.row_by_definition(row, &plain[v * stride..]);
                expected[v * out_stride + row - job.rows.start] = if weighted { sum * factors[v] } else { sum };
            }
        }
        for isa in [Isa::Scalar, Isa::detect()] {
            let mut out = vec![UNTOUCHED; expected.len()];
            multiply(isa, &job, &mut out, out_stride, &mut Scratch::new()).unwrap();
            same_bits(&expected, &out, isa.name())?;
        }
    }

    #[test]
    fn an_interrupted_row_gives_the_same_bits(
        which in 0usize..3, blocks in 1usize..6, half: bool, count in 1usize..9, seed: u64,
    ) {
        let random = &mut Random(seed);
        let k = blocks * COL_BLOCK + if half { 64 } else { 0 };
        let sample = Sample::random(FORMATS[which], 64, k, 0, random);
        let matrix = sample.matrix();
        let (_, prepared) = inputs(FORMATS[which], k, k, count, random);
        let mut job = Job::new(&matrix, Inputs::strided(&prepared, k, count));
        let factors: Vec<f32> = (0..count).map(|_| random.unit()).collect();
        job.factors = Some(&factors);
        let mut whole = vec![0.0; 64 * count];
        multiply(Isa::Scalar, &job, &mut whole, 64, &mut Scratch::new()).unwrap();

        for isa in [Isa::Scalar, Isa::detect()] {
            let mut parts = vec![f32::NAN; 64 * count];
            let mut at = 0;
            while at < blocks {
                let end = at + random.below(blocks - at + 1);
                let mut part = job.clone();
                part.columns = at * COL_BLOCK..end * COL_BLOCK;
                part.factors = None;
                multiply(isa, &part, &mut parts, 64, &mut Scratch::new()).unwrap();
                at = end;
            }
            job.columns = blocks * COL_BLOCK..k;
            multiply(isa, &job, &mut parts, 64, &mut Scratch::new()).unwrap();
            same_bits(&whole, &parts, isa.name())?;
        }
    }

    #[test]
    fn a_vector_gives_the_same_bits_in_any_batch(which in 0usize..3, count in 2usize..30, seed: u64) {
        let random = &mut Random(seed);
        let (rows, k) = (64, 320);
        let sample = Sample::random(FORMATS[which], rows, k, 64, random);
        let matrix = sample.matrix();
        let (_, prepared) = inputs(FORMATS[which], k, k, count, random);
        let isa = Isa::detect();
        let mut together = vec![0.0; rows * count];
        let job = Job::new(&matrix, Inputs::strided(&prepared, k, count));
        multiply(isa, &job, &mut together, rows, &mut Scratch::new()).unwrap();
        for v in 0..count {
            let mut alone = vec![0.0; rows];
            let job = Job::new(&matrix, Inputs::one(&prepared[v * k..][..k]));
            multiply(isa, &job, &mut alone, rows, &mut Scratch::new()).unwrap();
            same_bits(&alone, &together[v * rows..][..rows], "alone and together")?;
        }
    }
}

/// A one in each column in turn reads every weight on its own, in every position of a chunk and a tile.
#[test]
fn every_finite_code_comes_out_exactly_in_every_position() {
    let k = 256;
    let row_codes: Vec<u8> = (0..=255).map(|c: u8| if c & 0x7F == 0x7F { 0 } else { c }).collect();
    for format in [Format::E4m3, Format::Fp9] {
        let mut codes = Vec::new();
        for row in 0..32 {
            codes.extend((0..k).map(|column| row_codes[(column + 37 * row) % 256]));
        }
        let mut data = vec![0; fp9::packed_len(format, 32, k).unwrap()];
        fp9::pack_e4m3(format, fp9::E4m3Source { codes: &codes, stride: k }, 32, k, &mut data).unwrap();
        let matrix = Matrix::new(format, 32, k, &data, &[1.0, 1.0], 0).unwrap();
        for isa in [Isa::Scalar, Isa::detect()] {
            for count in [1, 2, 7] {
                for column in 0..k {
                    let mut x = vec![0.0; k * count];
                    (0..count).for_each(|v| x[v * k + column] = [1.0, -2.0, 0.5][v % 3]);
                    prepare(format, &mut x);
                    let job = Job::new(&matrix, Inputs::strided(&x, k, count));
                    let mut out = vec![0.0; 32 * count];
                    multiply(isa, &job, &mut out, 32, &mut Scratch::new()).unwrap();
                    for v in 0..count {
                        for row in 0..32 {
                            let weight = fp9::format::e4m3::decode(codes[row * k + column]);
                            assert_eq!(
                                out[v * 32 + row],
                                weight * [1.0, -2.0, 0.5][v % 3],
                                "row {row}, column {column}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn inputs_just_below_2_to_the_27_do_not_overflow() {
    let (rows, k) = (32, 7168);
    let largest = f32::from_bits(((127 + 27) << 23) - 1);
    for (format, scale) in
        [(Format::E4m3, 1.0), (Format::E4m3, 2f32.powi(60)), (Format::Fp9, 1.0), (Format::Fp9, 1e-30)]
    {
        let codes = vec![0x7Eu8; rows * k];
        let mut data = vec![0; fp9::packed_len(format, rows, k).unwrap()];
        fp9::pack_e4m3(format, fp9::E4m3Source { codes: &codes, stride: k }, rows, k, &mut data).unwrap();
        let scales = vec![scale; k / 128];
        let matrix = Matrix::new(format, rows, k, &data, &scales, 0).unwrap();
        let mut x = vec![largest; 3 * k];
        prepare(format, &mut x);
        for (isa, count) in [(Isa::Scalar, 1), (Isa::detect(), 1), (Isa::detect(), 2), (Isa::detect(), 3)] {
            let mut out = vec![0.0; rows * count];
            let job = Job::new(&matrix, Inputs::strided(&x, k, count));
            multiply(isa, &job, &mut out, rows, &mut Scratch::new()).unwrap();
            let exact = 448.0 * f64::from(largest) * k as f64 * f64::from(scale);
            assert!(out.iter().all(|&y| (f64::from(y) / exact - 1.0).abs() < 1e-4), "{format:?}: {} {exact}", out[0]);
        }
    }
}

#[test]
fn subnormal_weights_count_in_full() {
    let (rows, k) = (32, 128);
    let codes: Vec<u8> = (0..rows * k).map(|i| [1, 0x81, 7, 0x83][i % 4]).collect();
    let mut data = vec![0; rows * k];
    fp9::pack_e4m3(Format::E4m3, fp9::E4m3Source { codes: &codes, stride: k }, rows, k, &mut data).unwrap();
    let matrix = Matrix::new(Format::E4m3, rows, k, &data, &[512.0], 0).unwrap();
    let mut x = vec![1.0; 3 * k];
    prepare(Format::E4m3, &mut x);
    for (isa, count) in [(Isa::Scalar, 1), (Isa::detect(), 1), (Isa::detect(), 2), (Isa::detect(), 3)] {
        let mut out = vec![0.0; rows * count];
        let job = Job::new(&matrix, Inputs::strided(&x, k, count));
        multiply(isa, &job, &mut out, rows, &mut Scratch::new()).unwrap();
        // (1 - 1 + 7 - 3) · 2^-9 · 512 for each four columns.
        assert!(out.iter().all(|&y| y == 4.0 * 32.0), "{isa:?}, {count} vectors: {}", out[0]);
    }
}

/// Standard analysis: a chain of n roundings errs by at most n · 2^-24 of the terms' magnitudes; a block has 128, the
/// fold one for each block, the scale one.
#[test]
fn sums_are_accurate_against_f64() {
    let random = &mut Random(7);
    for format in FORMATS {
        for k in [64, 128, 2048, 7168] {
            let sample = Sample::random(format, 32, k, 0, random);
            let matrix = sample.matrix();
            let (plain, prepared) = inputs(format, k, k, 1, random);
            let mut out = vec![0.0; 32];
            let job = Job::new(&matrix, Inputs::one(&prepared[..k]));
            multiply(Isa::detect(), &job, &mut out, 32, &mut Scratch::new()).unwrap();
            let bound = (COL_BLOCK + k / COL_BLOCK + 2) as f64 * 2f64.powi(-24);
            for (row, &found) in out.iter().enumerate() {
                let (exact, magnitude) = sample.row_in_f64(row, &plain);
                let error = (f64::from(found) - exact).abs() / magnitude;
                assert!(error <= bound, "{format:?}, k {k}, row {row}: {error:e} of {bound:e}");
                assert!(error < 2e-7, "{format:?}, k {k}, row {row}: {error:e} is far above the usual error");
            }
        }
    }
}

#[test]
fn jobs_that_do_not_fit_are_refused_with_both_values() {
    let sample = Sample::random(Format::E4m3, 64, 192, 0, &mut Random(1));
    let matrix = sample.matrix();
    let x = vec![0.0; 2 * 192];
    type Change<'c, 'a> = &'c dyn Fn(&mut Job<'a>);
    fn run<'a>(
        matrix: &'a Matrix<'a>,
        x: &'a [f32],
        change: Change<'_, 'a>,
        out: usize,
        stride: usize,
    ) -> Result<(), Error> {
        let mut job = Job::new(matrix, Inputs::strided(x, 192, 2));
        change(&mut job);
        multiply(Isa::detect(), &job, &mut vec![0.0; out], stride, &mut Scratch::new())
    }
    assert_eq!(run(&matrix, &x, &|_| (), 128, 64), Ok(()));
    assert_eq!(run(&matrix, &x, &|_| (), 127, 64), Err(Error::Length { what: "output", expected: 128, found: 127 }));
    assert_eq!(
        run(&matrix, &x, &|_| (), 128, 63),
        Err(Error::Length { what: "output stride", expected: 64, found: 63 })
    );
    assert_eq!(
        run(&matrix, &x, &|job| job.inputs = Inputs::strided(&x, 193, 2), 128, 64),
        Err(Error::Length { what: "inputs", expected: 385, found: 384 })
    );
    let huge = Inputs::strided(&x, usize::MAX, usize::MAX);
    assert!(matches!(run(&matrix, &x, &|job| job.inputs = huge, 128, 64), Err(Error::Length { .. })));
    for rows in [8..64, 32..72, 32..96, 96..128] {
        assert!(matches!(
            run(&matrix, &x, &|job| job.rows = rows.clone(), 128, 64),
            Err(Error::Range { axis: "rows", .. })
        ));
    }
    for columns in [64..192, 0..64, 128..256] {
        assert!(matches!(
            run(&matrix, &x, &|job| job.columns = columns.clone(), 128, 64),
            Err(Error::Range { axis: "columns", .. })
        ));
    }
    assert_eq!(
        run(&matrix, &x, &|job| job.factors = Some(&[1.0]), 128, 64),
        Err(Error::Length { what: "factors", expected: 2, found: 1 })
    );
    let early = |job: &mut Job<'_>| (job.factors, job.columns) = (Some(&[1.0, 1.0][..]), 0..128);
    assert!(matches!(run(&matrix, &x, &early, 128, 64), Err(Error::Range { axis: "columns before factors", .. })));
}

#[test]
fn matrices_that_do_not_fit_are_refused() {
    let data = vec![0; 64 * 128];
    let new = |data, scales: &[f32], phase| Matrix::new(Format::E4m3, 64, 128, data, scales, phase).map(|_| ());
    assert_eq!(new(&data, &[1.0], 0), Ok(()));
    assert_eq!(new(&data, &[1.0, 1.0], 96), Ok(()));
    assert_eq!(new(&data[1..], &[1.0], 0), Err(Error::Length { what: "packed data", expected: 8192, found: 8191 }));
    assert_eq!(new(&data, &[1.0; 2], 64), Err(Error::Length { what: "scales", expected: 1, found: 2 }));
    assert_eq!(new(&data, &[1.0; 2], 100), Err(Error::Offset { axis: "row", found: 100, step: 32 }));
    assert!(matches!(new(&data, &[f32::NAN], 0), Err(Error::Scale { index: 0, .. })));
    assert!(matches!(new(&data, &[2e38], 0), Err(Error::Scale { index: 0, .. })));
}
