//! From checkpoint to packed matrix and back.

mod common;

use common::{FORMATS, Random, Sample};
use fp9::format::{bf16, e4m3, s1e5m3};
use fp9::{Bf16Source, E4m3Source, Error, Format, Matrix, gather_scales, pack_e4m3, pack_fp9_from_bf16, unpack};

#[test]
fn unpacking_gives_every_weight_times_its_scale() {
    for format in FORMATS {
        for (rows, k, phase) in [(64, 256, 64), (7168, 64, 0), (96, 192, 96)] {
            let sample = Sample::random(format, rows, k, phase, &mut Random(3));
            let mut out = vec![0.0; rows * k];
            unpack(&sample.matrix(), &mut out).unwrap();
            for row in 0..rows {
                for column in 0..k {
                    assert_eq!(out[row * k + column], sample.weight(row, column) * sample.scale(row, column));
                }
            }
        }
    }
}

/// A source of 256 × 384 with its 2 × 3 grid; a gate slice takes 64 rows, a down slice 64 columns.
#[test]
fn slices_keep_the_scale_of_the_block_they_came_from() {
    let (source_rows, source_k) = (256, 384);
    let random = &mut Random(5);
    let codes: Vec<u8> = (0..source_rows * source_k).map(|_| random.next() as u8 & 0xF7).collect();
    let grid = [0.5f32, 0.25, 0.125, 2.0, 4.0, 8.0];
    for (row, column, rows, k) in
        [(64, 0, 64, 384), (192, 128, 64, 256), (0, 64, 256, 64), (0, 320, 256, 64), (96, 128, 96, 128)]
    {
        let source = E4m3Source { codes: &codes[row * source_k + column..], stride: source_k };
        let mut data = vec![0; rows * k];
        pack_e4m3(Format::E4m3, source, rows, k, &mut data).unwrap();
        let mut scales = vec![0.0; fp9::scales_len(Format::E4m3, rows, k, row % 128)];
        let phase = gather_scales(&grid, 3, (row, column), (rows, k), &mut scales).unwrap();
        let mut out = vec![0.0; rows * k];
        unpack(&Matrix::new(Format::E4m3, rows, k, &data, &scales, phase).unwrap(), &mut out).unwrap();
        for r in 0..rows {
            for c in 0..k {
                let scale = grid[(row + r) / 128 * 3 + (column + c) / 128];
                let weight = e4m3::decode(codes[(row + r) * source_k + column + c]);
                assert_eq!(out[r * k + c], weight * scale, "slice at {row}, {column}: row {r}, column {c}");
            }
        }
    }
}

#[test]
fn slices_that_would_mix_scales_are_refused() {
    let grid = [1.0; 4];
    let gather = |offset, size, out: usize| gather_scales(&grid, 2, offset, size, &mut vec![0.0; out]);
    assert_eq!(gather((0, 64), (128, 128), 1), Err(Error::Offset { axis: "column", found: 64, step: 128 }));
    assert_eq!(gather((0, 32), (128, 64), 1), Err(Error::Offset { axis: "column", found: 32, step: 128 }));
    assert_eq!(gather((16, 0), (64, 128), 1), Err(Error::Offset { axis: "row", found: 16, step: 32 }));
    assert_eq!(gather((0, 128), (64, 256), 2), Err(Error::Length { what: "scale grid row", expected: 3, found: 2 }));
    assert_eq!(gather((256, 0), (64, 256), 2), Err(Error::Length { what: "scale grid", expected: 6, found: 4 }));
    assert_eq!(gather((0, 0), (64, 256), 3), Err(Error::Length { what: "scales", expected: 2, found: 3 }));
}

#[test]
fn nan_codes_are_refused_with_their_place() {
    let mut codes = vec![0x38u8; 32 * 100];
    codes[7 * 100 + 63] = 0xFF;
    let pack = |codes: &[u8], k| {
        pack_e4m3(Format::Fp9, E4m3Source { codes, stride: 100 }, 32, k, &mut vec![0; 32 * k * 9 / 8])
    };
    assert_eq!(pack(&codes, 64), Err(Error::NotFinite { row: 7, column: 63, code: 0xFF }));
    // Outside the slice it does no harm.
    codes.swap(7 * 100 + 63, 7 * 100 + 64);
    assert_eq!(pack(&codes, 64), Ok(()));
    let short = &codes[..31 * 100 + 63];
    assert_eq!(pack(short, 64), Err(Error::Length { what: "e4m3 source", expected: 3164, found: 3163 }));
    let bf16 = [0x7F80u16; 32 * 64];
    let source = Bf16Source { codes: &bf16, stride: 64 };
    let error = fp9::pack_bf16(source, 32, 64, &mut vec![0; 32 * 64 * 2]);
    assert_eq!(error, Err(Error::NotFinite { row: 0, column: 0, code: 0x7F80 }));
    assert_eq!(
        pack_e4m3(Format::Bf16, E4m3Source { codes: &[], stride: 0 }, 0, 64, &mut []),
        Err(Error::Conversion { from: "e4m3", to: Format::Bf16 })
    );
}

#[test]
fn bf16_is_rounded_to_the_nearest_fp9_and_the_error_reported() {
    let (rows, k) = (160, 192);
    let random = &mut Random(11);
    let codes: Vec<u16> = (0..rows * k)
        .map(|i| bf16::encode(random.unit() * random.unit() * 0.02 * if i % 1000 == 0 { 1e-7 } else { 1.0 }))
        .collect();
    let mut data = vec![0; rows * k * 9 / 8];
    let mut scales = vec![0.0; 4];
    let report = pack_fp9_from_bf16(Bf16Source { codes: &codes, stride: k }, rows, k, &mut data, &mut scales).unwrap();
    let mut out = vec![0.0; rows * k];
    unpack(&Matrix::new(Format::Fp9, rows, k, &data, &scales, 0).unwrap(), &mut out).unwrap();

    let (mut changed, mut flushed, mut squares, mut errors) = (0, 0, 0.0, 0.0);
    for (i, (&code, &found)) in codes.iter().zip(&out).enumerate() {
        let exact = bf16::decode(code);
        let scale = scales[i / k / 128 * 2 + i % k / 128];
        // The nearest emitted code by brute force over a neighbourhood would repeat `encode`; its ties are tested there.
        assert_eq!(found, s1e5m3::decode(s1e5m3::encode(exact / scale).unwrap()) * scale);
        let relative = (f64::from(found) / f64::from(exact) - 1.0).abs();
        let normal = (exact / scale).abs() >= s1e5m3::MIN_POSITIVE;
        assert!(!normal || relative <= 1.0 / 16.0, "{exact:e} became {found:e}");
        changed += u64::from(found != exact);
        flushed += u64::from(found == 0.0 && exact != 0.0);
        squares += f64::from(exact).powi(2);
        errors += (f64::from(found) - f64::from(exact)).powi(2);
    }
    assert_eq!((report.weights, report.changed, report.flushed), ((rows * k) as u64, changed, flushed));
    assert!(changed > 20_000 && flushed > 0);
    assert!((report.relative_mean_square() - errors / squares).abs() < 1e-12);
    assert!((0.01..0.04).contains(&report.relative_mean_square().sqrt()));
}
