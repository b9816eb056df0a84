//! All slice files in one pass over the checkpoint: an expert is read once, and cut into a block of every file.
//!
//! Files grow block by block, so a digest of the whole file is at hand when its last byte is written, and no file is read twice. Meanwhile a
//! thread makes what is written durable and notes it in the journal, as often as it can; that also starts the disk early, so
//! reading, packing and writing overlap.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::{TrySendError, sync_channel};
use std::thread::ScopedJoinHandle;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::convert::Meter;
use super::error::{ConvertError, PackError};
use super::manifest::{FileEntry, RoundingReport, slice_name};
use super::output::{self, Output, Prefix};
use super::slice_file::{Geometry, PAGE, Table};
use super::slices::{Codes, UnitFault, kind, matrices};
use super::source::{SourceFiles, read_ahead};
use crate::checkpoint::DType;
use crate::program::{Expert, ExpertLayer};
use kernels::unit::pack_unit;

/// Bytes of experts that are held at a time: read, being read, or being packed.
const IN_FLIGHT: u64 = 512 << 20;
/// Largest expert that is converted.
const LARGEST_EXPERT: u64 = 1 << 30;

/// What all slice files have in common.
pub(super) struct SliceJob<'a> {
    pub geometry: Geometry,
    pub model: [u8; 32],
    pub layers: &'a [ExpertLayer],
    /// Bytes from one durable point to the next, of all files together.
    pub durable_every: u64,
}

/// A file being written.
struct Writer {
    slice: usize,
    file: Arc<File>,
    path: std::path::PathBuf,
    hasher: blake3::Hasher,
    table: Table,
    rounding: RoundingReport,
    /// One block with its padding.
    buffer: Vec<u8>,
}

impl Writer {
    fn create(job: &SliceJob<'_>, output: &Output, slice: usize) -> Result<Writer, ConvertError> {
        let name = slice_name(slice);
        let mut writer = Writer::over(job, output, slice, output.create(&name)?);
        let header = job.geometry.header(slice, &job.model);
        writer.put(&header, 0)?;
        Ok(writer)
    }

    fn over(job: &SliceJob<'_>, output: &Output, slice: usize, file: File) -> Writer {
        Writer {
            slice,
            file: Arc::new(file),
            path: output.partial(&slice_name(slice)),
            hasher: blake3::Hasher::new(),
            table: Table::with_capacity(job.geometry.blocks()),
            rounding: RoundingReport::default(),
            buffer: vec![0; job.geometry.stride() as usize],
        }
    }

    /// Goes on after `blocks` durable blocks, if the file still begins as the journal says. Reads that beginning.
    fn resume(job: &SliceJob<'_>, output: &Output, slice: usize, blocks: usize, prefix: &Prefix) -> Option<Writer> {
        let open = || -> io::Result<Writer> {
            let file = OpenOptions::new().read(true).write(true).open(output.partial(&slice_name(slice)))?;
            let mut writer = Writer::over(job, output, slice, file);
            let mut header = [0; PAGE as usize];
            writer.file.read_exact_at(&mut header, 0)?;
            writer.hasher.update(&header);
            for block in 0..blocks {
                writer.file.read_exact_at(&mut writer.buffer, job.geometry.offset(block))?;
                writer.hasher.update(&writer.buffer);
                writer.table.push(&writer.buffer[..job.geometry.layout.len()]);
            }
            // Whatever was written after the durable point.
            writer.file.set_len(job.geometry.offset(blocks))?;
            Ok(writer)
        };
        let mut writer = open().ok()?;
        writer.rounding = prefix.rounding;
        writer.buffer.fill(0);
        (writer.prefix().blake3 == prefix.blake3).then_some(writer)
    }

    fn prefix(&self) -> Prefix {
        Prefix { blake3: self.hasher.finalize().to_hex().to_string(), rounding: self.rounding }
    }

    fn put(&mut self, bytes: &[u8], at: u64) -> Result<(), ConvertError> {
        self.hasher.update(bytes);
        self.file.write_all_at(bytes, at).map_err(|source| ConvertError::write(&self.path, source))
    }

    /// Packs and writes this slice's block of an expert.
    fn block(&mut self, geometry: &Geometry, codes: &Codes<'_>, place: &Place<'_>) -> Result<(), ConvertError> {
        let length = geometry.layout.len();
        let rounding = pack_unit(&geometry.layout, &codes.source(place.expert), self.slice, &mut self.buffer[..length])
            .map_err(|error| place.fault(error.into()))?;
        self.rounding.merge(&rounding.into());
        self.table.push(&self.buffer[..length]);
        let buffer = std::mem::take(&mut self.buffer);
        let written = self.put(&buffer, geometry.offset(place.block));
        self.buffer = buffer;
        written
    }

    /// Writes the table and makes the file durable.
    fn end(&mut self, geometry: &Geometry) -> Result<FileEntry, ConvertError> {
        let table = self.table.bytes();
        self.put(&table, geometry.offset(geometry.blocks()))?;
        self.file.sync_all().map_err(|source| ConvertError::write(&self.path, source))?;
        let Prefix { blake3, rounding } = self.prefix();
        Ok(FileEntry { name: slice_name(self.slice), size: geometry.file_len(), blake3, rounding: Some(rounding) })
    }
}

/// An expert and the number of its block.
struct Place<'a> {
    block: usize,
    layer: u16,
    number: usize,
    expert: &'a Expert,
}

impl Place<'_> {
    fn fault(&self, fault: UnitFault) -> PackError {
        fault.into_pack(self.layer, self.number, self.expert)
    }
}

/// An expert's codes, read.
#[derive(Default)]
struct Buffer {
    bytes: [Vec<u8>; 3],
    words: [Vec<u16>; 3],
    scratch: Vec<u8>,
    kind: Option<DType>,
}

impl Buffer {
    fn fill(&mut self, place: &Place<'_>, files: &mut SourceFiles) -> Result<(), ConvertError> {
        let kind = kind(place.expert).map_err(|fault| place.fault(fault))?;
        self.kind = Some(kind);
        let mut tensors = matrices(place.expert).map(|matrix| &matrix.data).into_iter().enumerate().collect::<Vec<_>>();
        // As they lie in the file.
        tensors.sort_by_key(|(_, tensor)| tensor.offset());
        for (_, tensor) in &tensors {
            files.will_need(tensor)?;
        }
        for (part, tensor) in tensors {
            if kind == DType::BF16 {
                files.read_words(tensor, &mut self.words[part], &mut self.scratch)?;
            } else {
                let bytes = &mut self.bytes[part];
                bytes.resize(tensor.bytes().len(), 0);
                files.read(tensor, 0, bytes)?;
            }
        }
        Ok(())
    }

    fn codes(&self) -> Codes<'_> {
        match self.kind {
            Some(DType::BF16) => Codes::Words(self.words.each_ref().map(Vec::as_slice)),
            _ => Codes::Bytes(self.bytes.each_ref().map(Vec::as_slice)),
        }
    }
}

/// Writes every slice file that is not finished. Returns how many blocks of each were there from an interrupted run.
pub(super) fn write(
    job: &SliceJob<'_>,
    output: &mut Output,
    pool: &ThreadPool,
    meter: &Meter<'_>,
) -> Result<usize, ConvertError> {
    let geometry = &job.geometry;
    let pending: Vec<_> = (0..geometry.slices).filter(|&slice| output.finished(&slice_name(slice)).is_none()).collect();
    meter.skip((geometry.slices - pending.len()) as u64 * geometry.file_len());
    if pending.is_empty() {
        return Ok(0);
    }
    let largest = job.layers.iter().flat_map(|l| &l.experts).map(expert_bytes).max().unwrap_or(0);
    if largest > LARGEST_EXPERT {
        return Err(PackError::Large { found: largest, limit: LARGEST_EXPERT }.into());
    }
    let (mut writers, resumed) = open_writers(job, output, &pending, pool)?;
    let there = pending.len() as u64 * geometry.offset(resumed);
    if resumed > 0 {
        meter.skip(there)
    } else {
        meter.add(there)
    }
    let places: Vec<_> = places(job.layers).skip(resumed).collect();
    pack_all(job, output, pool, meter, &mut writers, places, (IN_FLIGHT / largest.max(1)).clamp(2, 4) as usize)?;
    let entries =
        pool.install(|| writers.par_iter_mut().map(|writer| writer.end(geometry)).collect::<Result<_, _>>())?;
    output.journal.blocks = 0;
    output.journal.slices.clear();
    output.finish(entries)?;
    meter.add(pending.len() as u64 * (geometry.file_len() - geometry.offset(geometry.blocks())));
    Ok(resumed)
}

fn expert_bytes(expert: &Expert) -> u64 {
    matrices(expert).iter().map(|matrix| matrix.data.bytes().len() as u64).sum()
}

fn places(layers: &[ExpertLayer]) -> impl Iterator<Item = Place<'_>> {
    let all = layers.iter().flat_map(|layer| layer.experts.iter().enumerate().map(move |(e, x)| (layer.layer, e, x)));
    all.enumerate().map(|(block, (layer, number, expert))| Place { block, layer, number, expert })
}

/// The writers of all pending files, after as many blocks as are durable in all of them.
fn open_writers(
    job: &SliceJob<'_>,
    output: &mut Output,
    pending: &[usize],
    pool: &ThreadPool,
) -> Result<(Vec<Writer>, usize), ConvertError> {
    let blocks = output.journal.blocks;
    if blocks > 0 && blocks <= job.geometry.blocks() {
        let resume = |&slice: &usize| Writer::resume(job, output, slice, blocks, output.journal.slices.get(&slice)?);
        if let Some(writers) = pool.install(|| pending.par_iter().map(resume).collect()) {
            return Ok((writers, blocks));
        }
        tracing::warn!("the slice files of the interrupted conversion are damaged and are written anew");
    }
    output.journal.blocks = 0;
    output.journal.slices.clear();
    output.save()?;
    let writers = pending.iter().map(|&slice| Writer::create(job, output, slice)).collect::<Result<_, _>>()?;
    Ok((writers, 0))
}

/// A point to make durable: blocks of each file, and the files' states there.
type Point = (usize, Vec<(usize, Prefix)>);

fn pack_all(
    job: &SliceJob<'_>,
    output: &mut Output,
    pool: &ThreadPool,
    meter: &Meter<'_>,
    writers: &mut [Writer],
    places: Vec<Place<'_>>,
    buffers: usize,
) -> Result<(), ConvertError> {
    let files: Vec<_> = writers.iter().map(|writer| (writer.path.clone(), Arc::clone(&writer.file))).collect();
    let folder = output.path("");
    let journal = &mut output.journal;
    std::thread::scope(|scope| {
        // Without room for a point that waits: one is only made when the syncer is free.
        let (send, points) = sync_channel::<Point>(0);
        let mut syncer = Some(scope.spawn(move || {
            for (blocks, slices) in points {
                for (path, file) in &files {
                    file.sync_data().map_err(|source| ConvertError::write(path, source))?;
                }
                journal.blocks = blocks;
                journal.slices = slices.into_iter().collect();
                output::save(&folder, journal)?;
            }
            Ok(())
        }));
        let mut source = SourceFiles::default();
        let mut since = 0;
        let step = writers.len() as u64 * job.geometry.stride();
        let result = read_ahead(
            places.into_iter(),
            (0..buffers).map(|_| Buffer::default()).collect(),
            |place, buffer: &mut Buffer| buffer.fill(place, &mut source),
            |place, buffer| {
                let codes = buffer.codes();
                pool.install(|| {
                    writers.par_iter_mut().try_for_each(|writer| writer.block(&job.geometry, &codes, &place))
                })?;
                since += step;
                meter.add(step);
                if since < job.durable_every {
                    return Ok(());
                }
                let point = || (place.block + 1, writers.iter().map(|w| (w.slice, w.prefix())).collect());
                match send.try_send(point()) {
                    Ok(()) => since = 0,
                    Err(TrySendError::Full(_)) => {}
                    Err(TrySendError::Disconnected(_)) => join(syncer.take())?,
                }
                Ok(())
            },
        );
        drop(send);
        result.and(join(syncer.take()))
    })
}

fn join(thread: Option<ScopedJoinHandle<'_, Result<(), ConvertError>>>) -> Result<(), ConvertError> {
    match thread.map(ScopedJoinHandle::join) {
        None => Ok(()),
        Some(Ok(result)) => result,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
    }
}
