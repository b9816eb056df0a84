//! Blocks: what is packed is what was in the checkpoint, and what does not fit is refused where it stands.

mod common;

use common::{FORMATS, Line, Model, bytes_of, bytes_of_mut};
use fp9::Format;
use kernels::reference::Weights;
use kernels::tree::Shape;
use kernels::unit::{Expert, Part, Source, Tensor, Unit, UnitError, UnitLayout, pack_unit};

#[test]
fn a_block_holds_its_slice_of_the_checkpoint() {
    let shape = Shape { slices: 3, experts: 1 };
    for format in FORMATS {
        let model = Model::random(format, shape, 320, 1);
        for slice in 0..3 {
            let unit = Unit::view(&model.layout, model.block(slice, 0)).unwrap();
            for (part, matrix) in Part::ALL.into_iter().zip([unit.gate, unit.up, unit.down]) {
                let (rows, k) = model.layout.shape(part);
                let mut found = vec![0.0; rows * k];
                fp9::unpack(&matrix, &mut found).unwrap();
                for (at, found) in found.into_iter().enumerate() {
                    let (row, column) = (at / k, at % k);
                    let weight = model.weight(slice, 0, part, row, column);
                    let expected = weight * model.scale(slice, 0, part, row, column);
                    assert_eq!(found, expected, "{format:?} slice {slice} {part:?} ({row}, {column})");
                }
            }
        }
    }
}

#[test]
fn a_blocks_overhead_is_a_small_part_of_a_bit() {
    let layout = UnitLayout::new(Format::E4m3, 7168).unwrap();
    let overhead = (8 * layout.len() - 8 * layout.weights()) as f64 / layout.weights() as f64;
    assert!(overhead < 0.01, "{overhead} bit a weight");
    for format in FORMATS {
        for hidden in [64, 192, 256, 2048, 5120, 65_536] {
            let layout = UnitLayout::new(format, hidden).unwrap();
            assert!(layout.len().is_multiple_of(64));
            assert!(Part::ALL.iter().all(|&p| layout.data(p).start.is_multiple_of(64)));
            assert!(layout.scales(Part::Down).end <= layout.len() && layout.len() - layout.scales(Part::Down).end < 64);
        }
    }
    for hidden in [0, 32, 100, 65_600] {
        assert_eq!(UnitLayout::new(Format::Fp9, hidden), Err(UnitError::Hidden { found: hidden }));
    }
}

/// A source whose tensors a test may spoil.
struct Spoilt {
    gate: Vec<u8>,
    down: Vec<u8>,
    scales: Vec<f32>,
}

impl Spoilt {
    fn new() -> Spoilt {
        Spoilt { gate: vec![0x38; 128 * 256], down: vec![0x38; 256 * 128], scales: vec![1.0; 2] }
    }

    fn pack(&self, slice: usize) -> Result<(), UnitError> {
        let layout = UnitLayout::new(Format::Fp9, 256).unwrap();
        let tensor = |codes| Tensor { codes, scales: &self.scales[..] };
        let expert =
            Expert { gate: tensor(&self.gate[..]), up: tensor(&self.gate), down: tensor(&self.down), width: 128 };
        pack_unit(&layout, &Source::E4m3(expert), slice, &mut vec![0; layout.len()]).map(|_| ())
    }
}

#[test]
fn a_nan_is_refused_with_its_place_in_the_checkpoint() {
    assert_eq!(Spoilt::new().pack(1), Ok(()));
    let mut spoilt = Spoilt::new();
    spoilt.gate[100 * 256 + 17] = 0xFF;
    assert_eq!(spoilt.pack(0), Ok(()));
    assert_eq!(spoilt.pack(1), Err(UnitError::NotFinite { part: Part::Gate, row: 100, column: 17, code: 0xFF }));
    let mut spoilt = Spoilt::new();
    spoilt.down[200 * 128 + 65] = 0x7F;
    assert_eq!(spoilt.pack(1), Err(UnitError::NotFinite { part: Part::Down, row: 200, column: 65, code: 0x7F }));
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut spoilt = Spoilt::new();
    assert_eq!(spoilt.pack(2), Err(UnitError::Slice { slices: 2, found: 2 }));
    spoilt.scales[1] = f32::NAN;
    assert!(matches!(
        spoilt.pack(0),
        Err(UnitError::Part { part: Part::Gate, cause: fp9::Error::Scale { index: 1, .. } })
    ));
    spoilt.scales.pop();
    assert!(matches!(spoilt.pack(0), Err(UnitError::Part { part: Part::Gate, cause: fp9::Error::Length { .. } })));
    let mut spoilt = Spoilt::new();
    spoilt.down.pop();
    let expected = (256, 128);
    assert_eq!(spoilt.pack(0), Err(UnitError::Tensor { part: Part::Down, expected, found: 256 * 128 - 1 }));
}

#[test]
fn a_view_needs_length_alignment_and_finite_scales() {
    let model = Model::random(Format::E4m3, Shape { slices: 1, experts: 1 }, 128, 9);
    let (layout, block) = (&model.layout, model.block(0, 0));
    assert!(Unit::view(layout, block).is_ok());
    let (expected, found) = (layout.len(), layout.len() - 64);
    assert_eq!(Unit::view(layout, &block[..found]).unwrap_err(), UnitError::Length { expected, found });
    let mut lines = vec![Line([0; 64]); layout.len() / 64 + 1];
    bytes_of_mut(&mut lines)[2..][..block.len()].copy_from_slice(block);
    let odd = &bytes_of(&lines)[2..][..block.len()];
    assert_eq!(Unit::view(layout, odd).unwrap_err(), UnitError::Alignment { expected: 64, found: 2 });
    let mut spoilt = vec![Line([0; 64]); layout.len() / 64];
    bytes_of_mut(&mut spoilt).copy_from_slice(block);
    let at = layout.scales(Part::Up).start;
    bytes_of_mut(&mut spoilt)[at..at + 4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    assert!(matches!(
        Unit::view(layout, bytes_of(&spoilt)),
        Err(UnitError::Part { part: Part::Up, cause: fp9::Error::Scale { index: 0, .. } })
    ));
}

#[test]
fn bf16_is_kept_or_rounded_with_a_report() {
    let hidden = 128;
    let codes: Vec<u16> = (0..64 * hidden).map(|i| fp9::format::bf16::encode((i % 251) as f32 / 100.0)).collect();
    let tensor = Tensor { codes: &codes[..], scales: &[] };
    let source = Source::Bf16(Expert { gate: tensor, up: tensor, down: tensor, width: 64 });
    for (format, rounds) in [(Format::Bf16, false), (Format::Fp9, true)] {
        let layout = UnitLayout::new(format, hidden).unwrap();
        let report = pack_unit(&layout, &source, 0, &mut vec![0; layout.len()]).unwrap();
        assert_eq!(report.weights, layout.weights() as u64);
        assert_eq!(report.changed > 0, rounds, "{format:?}");
        assert!(report.max_relative <= 1.0 / 16.0);
    }
    let layout = UnitLayout::new(Format::E4m3, hidden).unwrap();
    let error = pack_unit(&layout, &source, 0, &mut vec![0; layout.len()]).unwrap_err();
    assert!(matches!(error, UnitError::Part { cause: fp9::Error::Conversion { .. }, .. }), "{error}");
}
