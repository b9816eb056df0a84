//! Converted folders: what is in them, loading them, finding what is damaged in them, and what is refused.

mod checkpoint_support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use checkpoint_support::*;
use fp9::Format;
use kernels::unit::{self, Source, Unit, pack_unit};
use model::arch;
use model::checkpoint::{Checkpoint, DType, Matrix};
use model::converted::{
    ConvertError, Converted, FaultKind, FormatChoice, Options, PackError, Report, Slices, convert, slice_name, verify,
};
use model::program::{Expert, Model};
use model::synthetic::Dims;
use tempfile::TempDir;

fn bf16_dims() -> Dims {
    Dims { fp8: false, ..Dims::tiny() }
}

fn try_convert(source: &Path, out: &Path, format: FormatChoice) -> Result<Report, ConvertError> {
    let options = Options { format, threads: 2, ..Options::default() };
    convert(&Checkpoint::open(source).expect("opens"), out, &options, &|_| {})
}

/// A converted checkpoint in a folder of its own.
fn converted(source: &Path, format: FormatChoice) -> (TempDir, Report) {
    let out = tempfile::tempdir().expect("a folder");
    let report = try_convert(source, out.path(), format).expect("converts");
    (out, report)
}

/// Packs one unit straight from the checkpoint, by the kernels' own function and nothing else.
fn packed(expert: &Expert, slices: &Slices, slice: usize) -> Vec<u8> {
    let mut block = vec![0xa5; slices.layout().len()];
    let width = expert.gate.rows;
    let scales = |m: &Matrix| m.scale.as_ref().map_or(Vec::new(), |s| s.values().to_vec());
    let matrices = [&expert.gate, &expert.up, &expert.down];
    let scales = matrices.map(scales);
    if expert.gate.dtype() == DType::F8E4M3 {
        let tensor = |i: usize| unit::Tensor { codes: matrices[i].data.bytes(), scales: &scales[i] };
        let source = Source::E4m3(unit::Expert { gate: tensor(0), up: tensor(1), down: tensor(2), width });
        pack_unit(slices.layout(), &source, slice, &mut block).expect("packs");
    } else {
        let codes = matrices.map(|m| {
            let pairs = m.data.bytes().chunks_exact(2);
            pairs.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect::<Vec<_>>()
        });
        let tensor = |i: usize| unit::Tensor { codes: &codes[i], scales: &[] };
        let source = Source::Bf16(unit::Expert { gate: tensor(0), up: tensor(1), down: tensor(2), width });
        pack_unit(slices.layout(), &source, slice, &mut block).expect("packs");
    }
    block
}

#[track_caller]
fn assert_units(slices: &Slices, model: &Model) {
    assert_eq!((slices.layers(), slices.slices()), (model.experts.len(), model.dims.slices()));
    assert_eq!(slices.experts(), model.dims.experts);
    for (l, layer) in model.experts.iter().enumerate() {
        for (e, expert) in layer.experts.iter().enumerate() {
            for s in 0..slices.slices() {
                let block = slices.unit(l, s, e);
                assert_eq!(block.as_ptr() as usize % 64, 0, "layer {l}, slice {s}, expert {e}");
                assert!(block == packed(expert, slices, s), "layer {l}, slice {s}, expert {e}");
                assert_eq!(slices.checksum(l, s, e), crc32c::crc32c(block));
                assert_eq!(slices.digest(l, s, e), *blake3::hash(block).as_bytes());
                Unit::view(slices.layout(), block).expect("the kernels take it");
            }
        }
    }
}

#[test]
fn every_unit_of_every_format_is_packed_as_the_kernels_pack_it() {
    let (fp8, bf16) = (tiny(), synthetic(&bf16_dims(), 200_000));
    let cases = [
        (duckling(), FormatChoice::Auto, Format::E4m3),
        (duckling(), FormatChoice::Only(Format::Fp9), Format::Fp9),
        (fp8.path().into(), FormatChoice::Auto, Format::E4m3),
        (bf16.path().into(), FormatChoice::Auto, Format::Fp9),
        (bf16.path().into(), FormatChoice::Only(Format::Bf16), Format::Bf16),
    ];
    for (source, choice, format) in cases {
        let model = arch::load(&source).expect("loads");
        let (out, _) = converted(&source, choice);
        let folder = Converted::open(out.path()).expect("opens");
        assert_eq!(folder.slices().format(), format);
        assert!(folder.slices().is_mapped());
        assert_units(folder.slices(), &model);
        let (memory, _) = Slices::in_memory(&model.experts, choice).expect("packs");
        assert!(!memory.is_mapped());
        assert_units(&memory, &model);
    }
}

#[test]
fn blocks_start_at_pages_that_follow_from_their_number() {
    let (out, report) = converted(&duckling(), FormatChoice::Auto);
    let folder = Converted::open(out.path()).expect("opens");
    let slices = folder.slices();
    let stride = report.manifest.unit_stride as usize;
    assert_eq!(stride, slices.layout().len().next_multiple_of(4096));
    for slice in 0..4 {
        let file = fs::read(out.path().join(slice_name(slice))).expect("a slice file");
        for (layer, expert) in [(0, 0), (1, 3), (4, 7)] {
            let at = 4096 + (layer * 8 + expert) * stride;
            assert!(file[at..][..slices.layout().len()] == *slices.unit(layer, slice, expert));
        }
    }
}

#[test]
fn the_report_says_what_rounding_did() {
    let (_out, exact) = converted(&duckling(), FormatChoice::Only(Format::Fp9));
    assert!(exact.rounding.is_exact() && exact.rounding.relative_rms() == 0.0);
    assert_eq!(exact.rounding.weights, 5 * 8 * 3 * 256 * 256);
    let source = synthetic(&bf16_dims(), u64::MAX);
    let (_out, rounded) = converted(source.path(), FormatChoice::Auto);
    // Seven mantissa bits become three: an error of at most half a step of 1/8, on average a fraction of it.
    let rms = rounded.rounding.relative_rms();
    assert!((0.01..0.04).contains(&rms), "{rms}");
    assert!(rounded.rounding.max_relative <= 1.0 / 16.0 && rounded.rounding.changed > 0);
    let model = arch::load(source.path()).expect("loads");
    let (_, memory) = Slices::in_memory(&model.experts, FormatChoice::Auto).expect("packs");
    assert_eq!((memory.weights, memory.changed), (rounded.rounding.weights, rounded.rounding.changed));
}

#[test]
fn the_host_half_is_the_same_after_the_source_is_gone() {
    for source in [tiny(), synthetic(&bf16_dims(), 100_000)] {
        let before = arch::load(source.path()).expect("loads");
        let values = |m: &Matrix| (m.dtype(), m.data.bytes().to_vec(), m.scale.clone());
        let matrices: Vec<_> = before.weights.matrices.iter().map(values).collect();
        let vectors = before.weights.vectors.clone();
        let (out, _) = converted(source.path(), FormatChoice::Auto);
        source.close().expect("deleted");
        let after = arch::load(out.path()).expect("the converted folder loads");
        assert!(after.weights.matrices.iter().map(values).collect::<Vec<_>>() == matrices);
        assert!(after.weights.vectors == vectors);
        assert_eq!((after.main, after.mtp), (before.main, before.mtp));
        assert_eq!((after.dims, after.end_tokens, after.caches), (before.dims, before.end_tokens, before.caches));
        let numbers = |model: &[model::program::ExpertLayer]| model.iter().map(|l| l.layer).collect::<Vec<_>>();
        assert_eq!(numbers(&after.experts), numbers(&before.experts));
        assert!(after.experts.iter().all(|layer| layer.experts.is_empty()));
        assert!(before.slices.is_none() && after.slices.is_some());
    }
}

#[test]
fn a_converted_duckling_has_its_tokenizer_and_passes_verify() {
    let (out, report) = converted(&duckling(), FormatChoice::Auto);
    model::tokenizer::Tokenizer::open(out.path()).expect("the tokenizer came along");
    for file in ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        assert_eq!(fs::read(out.path().join(file)).expect(file), fs::read(duckling().join(file)).expect(file));
    }
    let checked = verify(out.path(), &|_| {}).expect("has a manifest");
    assert_eq!(checked.faults, []);
    assert_eq!((checked.bytes, checked.blocks), (report.bytes, 5 * 8 * 4));
    let on_disk: u64 = fs::read_dir(out.path())
        .expect("a folder")
        .map(|e| e.expect("an entry").metadata().expect("its size").len())
        .sum();
    assert_eq!(on_disk, report.bytes + report.manifest.text().len() as u64, "nothing else is left in the folder");
}

#[test]
fn progress_ends_at_the_total_and_counts_every_byte() {
    let source = tiny();
    let out = tempfile::tempdir().expect("a folder");
    let last = std::sync::Mutex::new(None);
    let watch = |progress: model::converted::Progress| *last.lock().expect("not poisoned") = Some(progress);
    let checkpoint = Checkpoint::open(source.path()).expect("opens");
    let report = convert(&checkpoint, out.path(), &Options::default(), &watch).expect("converts");
    let end = last.lock().expect("not poisoned").take().expect("was called");
    assert_eq!((end.done, end.total, end.before), (report.bytes, report.bytes, 0));
    assert_eq!(report.written, report.bytes);
    verify(out.path(), &watch).expect("verifies");
    let end = last.into_inner().expect("not poisoned").expect("was called");
    assert_eq!((end.done, end.total), (report.bytes, report.bytes));
}

fn identities(folder: &Path) -> Vec<(String, u64, i64, i64)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            let entry = entry.expect("an entry");
            let metadata = entry.metadata().expect("its metadata");
            (
                entry.file_name().into_string().expect("a plain name"),
                metadata.ino(),
                metadata.mtime(),
                metadata.mtime_nsec(),
            )
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_finished_conversion_is_not_touched_again() {
    let (out, first) = converted(&duckling(), FormatChoice::Auto);
    let before = identities(out.path());
    let second = try_convert(&duckling(), out.path(), FormatChoice::Auto).expect("nothing to do");
    assert_eq!((second.written, second.manifest), (0, first.manifest));
    assert_eq!(identities(out.path()), before);
}

#[test]
fn a_lost_file_is_made_again_and_the_others_stay() {
    let (out, first) = converted(&duckling(), FormatChoice::Auto);
    for lost in ["slice-02.duck", "host.safetensors", "tokenizer.json"] {
        let before = identities(out.path());
        fs::remove_file(out.path().join(lost)).expect("removed");
        let again = try_convert(&duckling(), out.path(), FormatChoice::Auto).expect("is repaired");
        assert_eq!(again.manifest, first.manifest);
        let size = first.manifest.file(lost).expect("listed").size;
        assert_eq!(again.written, size, "{lost}");
        let kept = |files: Vec<(String, u64, i64, i64)>| {
            files.into_iter().filter(|f| f.0 != lost && f.0 != "manifest.json").collect::<Vec<_>>()
        };
        assert_eq!(kept(identities(out.path())), kept(before));
        assert_eq!(verify(out.path(), &|_| {}).expect("verifies").faults, []);
    }
}

#[test]
fn a_spoilt_byte_is_found_and_named_wherever_it_is() {
    let (out, report) = converted(&duckling(), FormatChoice::Auto);
    let (len, stride) = (report.manifest.unit_bytes, report.manifest.unit_stride);
    let path = out.path().join("slice-01.duck");
    let whole = fs::read(&path).expect("read");
    let block = |number: u64| 4096 + number * stride;
    let mut cases = vec![(3, None), (4095, None), (whole.len() as u64 - 1, None), (block(40) + 5, None)];
    // Any byte of a block: its first, its last, its padding, and some between.
    for number in [0, 7, 8, 23, 39] {
        let within = [0, 1, 64 * 256, len / 2 + number, len - 1, len, stride - 1];
        cases.extend(within.map(|at| (block(number) + at, Some((number, at)))));
    }
    for (at, place) in cases {
        let mut spoilt = whole.clone();
        spoilt[at as usize] ^= 0x10;
        fs::write(&path, &spoilt).expect("written");
        let faults = verify(out.path(), &|_| {}).expect("the manifest is whole").faults;
        assert_eq!(faults.len(), 1, "byte {at}: {faults:?}");
        assert_eq!(faults[0].file, "slice-01.duck");
        match (place, &faults[0].kind) {
            (None, FaultKind::Header) => assert!(at < 4096),
            (None, FaultKind::Table) => assert!(at >= block(40)),
            (Some((number, offset)), FaultKind::Block { layer, expert, .. }) => {
                assert!(offset < len);
                assert_eq!((u64::from(*layer), *expert as u64), (1 + number / 8, number % 8));
            }
            (Some((number, offset)), FaultKind::Padding { layer, expert }) => {
                assert!(offset >= len);
                assert_eq!((u64::from(*layer), *expert as u64), (1 + number / 8, number % 8));
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn a_digest_that_is_not_its_blocks_is_found_though_all_checksums_fit() {
    let (out, report) = converted(&duckling(), FormatChoice::Auto);
    let path = out.path().join("slice-01.duck");
    let mut file = fs::read(&path).expect("read");
    // Behind 40 blocks: 40 checksums, 40 digests, the checksum of both.
    let table = 4096 + 40 * report.manifest.unit_stride as usize;
    assert_eq!(file.len(), table + 40 * (4 + 32) + 4);
    file[table + 40 * 4 + 32 * 19] ^= 1;
    let (whole, end) = file.split_at_mut(table + 40 * 36);
    end.copy_from_slice(&crc32c::crc32c(&whole[table..]).to_le_bytes());
    fs::write(&path, &file).expect("written");
    let found = Converted::open(out.path()).expect("only reading blocks shows it");
    let block = blake3::hash(found.slices().unit(2, 1, 3));
    assert_ne!(found.slices().digest(2, 1, 3), *block.as_bytes(), "the digest is the table's");
    let faults = verify(out.path(), &|_| {}).expect("the manifest is whole").faults;
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(matches!(faults[0].kind, FaultKind::UnitDigest { layer: 3, expert: 3, found, .. } if found == block));
    assert_says(&faults[0].to_string(), &["slice-01.duck", "layer 3, expert 3", "digest"]);
}

#[test]
fn an_older_folder_is_to_be_converted_again() {
    let (out, _) = converted(tiny().path(), FormatChoice::Auto);
    let path = out.path().join("manifest.json");
    let text = fs::read_to_string(&path).expect("read");
    assert!(text.contains("\"version\": 2,"));
    fs::write(&path, text.replace("\"version\": 2,", "\"version\": 1,")).expect("written");
    let error = verify(out.path(), &|_| {}).expect_err("another version");
    assert_says(&chain(&error), &["manifest.json", "version 1, expected 2", "convert the checkpoint again"]);
    assert_says(&chain(&arch::load(out.path()).expect_err("another version")), &["convert the checkpoint again"]);
}

#[test]
fn every_fault_is_listed_not_only_the_first() {
    let (out, _) = converted(&duckling(), FormatChoice::Auto);
    let spoil = |file: &str, at: &[usize]| {
        let path = out.path().join(file);
        let mut bytes = fs::read(&path).expect("read");
        at.iter().for_each(|&at| bytes[at] ^= 1);
        fs::write(&path, bytes).expect("written");
    };
    spoil("slice-00.duck", &[10_000, 100_000, 300_000]);
    spoil("host.safetensors", &[20_000]);
    spoil("config.json", &[5]);
    fs::remove_file(out.path().join("tokenizer.json")).expect("removed");
    let last = out.path().join("slice-03.duck");
    let size = fs::metadata(&last).expect("there").len();
    fs::OpenOptions::new().write(true).open(&last).expect("opened").set_len(size - 9000).expect("cut");
    fs::write(out.path().join("slice-09.duck"), "x").expect("written");
    let faults = verify(out.path(), &|_| {}).expect("the manifest is whole").faults;
    let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), 8, "{lines:#?}");
    let starts = ["config.json has the digest", "tokenizer.json is missing", "host.safetensors has the digest"];
    for start in starts.into_iter().chain(["slice-03.duck has", "slice-09.duck is not in manifest.json"]) {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{start}: {lines:#?}");
    }
    assert_eq!(lines.iter().filter(|line| line.starts_with("slice-00.duck: the block of layer 1, expert")).count(), 3);
}

#[test]
fn a_changed_manifest_is_refused() {
    let (out, _) = converted(tiny().path(), FormatChoice::Auto);
    let path = out.path().join("manifest.json");
    let text = fs::read(&path).expect("read");
    for at in (0..text.len()).step_by(37) {
        for bit in [0, 4] {
            let mut spoilt = text.clone();
            spoilt[at] ^= 1 << bit;
            fs::write(&path, &spoilt).expect("written");
            let error = verify(out.path(), &|_| {}).expect_err("the manifest is spoilt");
            assert_says(&chain(&error), &["manifest.json"]);
            assert!(arch::load(out.path()).is_err());
        }
    }
}

#[test]
fn opening_names_the_file_that_is_missing_cut_or_foreign() {
    let (out, _) = converted(&duckling(), FormatChoice::Auto);
    let (other, _) = converted(tiny().path(), FormatChoice::Auto);
    let error = |folder: &Path| chain(&arch::load(folder).expect_err("spoilt"));
    let path = out.path().join("slice-01.duck");
    let whole = fs::read(&path).expect("read");
    fs::write(&path, &whole[1..]).expect("written");
    assert_says(&error(out.path()), &["slice-01.duck has", "by manifest.json"]);
    fs::copy(out.path().join("slice-00.duck"), &path).expect("copied");
    assert_says(&error(out.path()), &["slice-01.duck is damaged", "header", "duckpond verify"]);
    fs::remove_file(&path).expect("removed");
    assert_says(&error(out.path()), &["slice-01.duck is missing"]);
    fs::write(&path, &whole).expect("written");
    arch::load(out.path()).expect("whole again");
    fs::remove_file(other.path().join("host.safetensors")).expect("removed");
    assert_says(&error(other.path()), &["host.safetensors is missing"]);
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let out = tempfile::tempdir().expect("a folder");
    fs::write(out.path().join("thesis.tex"), "years of work").expect("written");
    let error = try_convert(&duckling(), out.path(), FormatChoice::Auto).expect_err("not empty");
    assert_says(&chain(&error), &["holds thesis.tex and no conversion", "an empty one"]);
    assert_eq!(fs::read_dir(out.path()).expect("a folder").count(), 1);
    let file = out.path().join("thesis.tex");
    assert_says(
        &chain(&try_convert(&duckling(), &file, FormatChoice::Auto).expect_err("a file")),
        &["is not a folder"],
    );
    // Into the checkpoint itself.
    let source = tiny();
    let error = try_convert(source.path(), source.path(), FormatChoice::Auto).expect_err("not empty");
    assert_says(&chain(&error), &["and no conversion"]);
}

#[test]
fn a_conversion_of_another_model_or_format_is_left_alone() {
    let (out, _) = converted(&duckling(), FormatChoice::Auto);
    let before = identities(out.path());
    let error = try_convert(tiny().path(), out.path(), FormatChoice::Auto).expect_err("another model");
    assert_says(&chain(&error), &["holds a conversion with hidden size 256, expected 128", "another folder"]);
    let error = try_convert(&duckling(), out.path(), FormatChoice::Only(Format::Fp9)).expect_err("another format");
    assert_says(&chain(&error), &["expert format e4m3, expected fp9"]);
    assert_eq!(identities(out.path()), before);
    // Same sizes, other weights.
    let (one, two) = (tiny(), tempfile::tempdir().expect("a folder"));
    let options = model::synthetic::Options { folder: two.path(), dims: &Dims::tiny(), seed: 8, shard_bytes: u64::MAX };
    model::synthetic::write(&options).expect("written");
    let (out, _) = converted(one.path(), FormatChoice::Auto);
    let error = try_convert(two.path(), out.path(), FormatChoice::Auto).expect_err("other weights");
    assert_says(&chain(&error), &["holds a conversion with source digest"]);
}

#[test]
fn formats_that_lose_or_do_not_exist_are_refused_by_tensor() {
    let out = tempfile::tempdir().expect("a folder");
    let error = try_convert(&duckling(), out.path(), FormatChoice::Only(Format::Bf16)).expect_err("not from e4m3");
    assert_says(&chain(&error), &["experts.0.gate_proj.weight is F8_E4M3", "stored as bf16", "e4m3 and fp9"]);
    let bf16 = synthetic(&bf16_dims(), u64::MAX);
    let error = try_convert(bf16.path(), out.path(), FormatChoice::Only(Format::E4m3)).expect_err("not from bf16");
    assert_says(&chain(&error), &["is BF16", "stored as e4m3", "fp9 and bf16"]);
    assert_eq!(fs::read_dir(out.path()).expect("a folder").count(), 0);
}

const EXPERT: &str = "model.layers.1.mlp.experts.5.up_proj.weight";

#[test]
fn a_missing_tensor_is_named_before_anything_is_written() {
    let source = tiny();
    rename_tensor(source.path(), EXPERT, "elsewhere");
    let out = source.path().join("out");
    let error = try_convert(source.path(), &out, FormatChoice::Auto).expect_err("a tensor is missing");
    assert_says(&chain(&error), &[EXPERT, "is missing"]);
    assert!(!out.exists());
}

#[test]
fn nan_weights_are_refused_with_tensor_row_and_column() {
    for (name, row, column) in [(EXPERT, 77, 20), ("model.layers.0.self_attn.q_a_proj.weight", 3, 100)] {
        let source = tiny();
        edit_tensor(source.path(), name, |_, data| data[row * 128 + column] = 0xff);
        let out = tempfile::tempdir().expect("a folder");
        let error = try_convert(source.path(), out.path(), FormatChoice::Auto).expect_err("a NaN");
        assert_says(&chain(&error), &[name, &format!("row {row}, column {column}"), "0xff"]);
        let names: Vec<_> = identities(out.path()).into_iter().map(|file| file.0).collect();
        assert!(!names.iter().any(|name| name.ends_with(".duck") || name == "manifest.json"), "{names:?}");
    }
    let source = tiny();
    edit_tensor(source.path(), EXPERT, |_, data| data[0] = 0x7f);
    let model = arch::load(source.path()).expect("loads");
    let error = Slices::in_memory(&model.experts, FormatChoice::Auto).expect_err("a NaN");
    assert!(matches!(error, PackError::NotFinite { row: 0, column: 0, code: 0x7f, .. }), "{error:?}");
}

#[test]
fn a_model_too_large_for_memory_is_sent_to_the_converter() {
    // One layer of many experts that are the same mapped bytes: nothing of this size is allocated or read.
    let source = tiny();
    let model = arch::load(source.path()).expect("loads");
    let mut layer = model.experts[0].clone();
    let expert = layer.experts[0].clone();
    layer.experts = vec![expert; 100_000];
    let error = Slices::in_memory(&[layer], FormatChoice::Auto).expect_err("too large");
    assert_says(&chain(&error), &["packed in memory", "duckpond convert CHECKPOINT OUT"]);
}
