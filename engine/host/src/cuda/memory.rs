//! Memory of the card, and pinned memory of the host that the card reaches as well: owners that free what they hold.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::abi::Plain;
use super::device::{Device, failed};
use super::error::CudaError;

/// Bytes on the card.
pub(crate) struct Memory {
    address: u64,
    bytes: usize,
    device: Arc<Device>,
}

impl Memory {
    /// Room for so many bytes, undefined.
    pub(crate) fn new(device: &Arc<Device>, what: &str, bytes: usize) -> Result<Memory, CudaError> {
        device.bind()?;
        // SAFETY: a context is bound; nothing reads the memory before it is written, or its values do not matter.
        match unsafe { result::malloc_sync(bytes.max(1)) } {
            Ok(address) => Ok(Memory { address, bytes, device: device.clone() }),
            Err(result::DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Err(CudaError::OutOfMemory {
                what: what.into(),
                needed: bytes as u64,
                free: device.memory().map_or(0, |(free, _)| free),
            }),
            Err(error) => Err(failed(&format!("allocating {what}"), error)),
        }
    }

    /// Where it lies.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// How much there is.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes values from `offset` bytes on and waits.
    pub(crate) fn write<T: Plain>(&self, offset: usize, values: &[T]) -> Result<(), CudaError> {
        assert!(offset + size_of_val(values) <= self.bytes, "within the memory");
        if values.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // The call returns once the values have left the host's pages; streams of ours do not wait for their arrival by themselves.
        let copied = unsafe {
            // SAFETY: the range was checked, and the values live until the default stream has run out.
            result::memcpy_htod_sync(self.address + offset as u64, values)
                .and_then(|()| result::stream::synchronize(std::ptr::null_mut()))
        };
        copied.map_err(|error| failed("copying to the GPU", error))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once. After an error that stays the call fails, and the process's end frees.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Values in page-locked memory of the host, at the same address for the card.
pub(crate) struct Pinned<T> {
    at: NonNull<T>,
    len: usize,
    device: Arc<Device>,
    values: PhantomData<T>,
}

// SAFETY: an owner of plain values; what the card does with them is ordered by whoever launches (see `Pinned::get`).
unsafe impl<T: Plain + Send> Send for Pinned<T> {}
// SAFETY: as above.
unsafe impl<T: Plain + Sync> Sync for Pinned<T> {}

impl<T: Plain> Pinned<T> {
    /// Room for so many values, all bits zero.
    pub(crate) fn new(device: &Arc<Device>, len: usize) -> Result<Pinned<T>, CudaError> {
        device.bind()?;
        let bytes = (len * size_of::<T>()).max(1);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: a context is bound; the memory is zeroed before anybody reads it.
        let at = unsafe {
            let at = result::malloc_host(bytes, flags).map_err(|error| failed("locking host memory", error))?;
            std::ptr::write_bytes(at.cast::<u8>(), 0, bytes);
            at
        };
        let at = NonNull::new(at.cast()).expect("a successful call gives memory");
        Ok(Pinned { at, len, device: device.clone(), values: PhantomData })
    }

    /// The address, for the card.
    pub(crate) fn address(&self) -> u64 {
        self.at.as_ptr() as u64
    }

    /// The values. The card must not write them meanwhile: call after its word that says so was seen.
    pub(crate) fn get(&self) -> &[T] {
        // SAFETY: `len` values, all bits are values; the protocol of the words keeps the card away.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// The values, to be changed. The card must not use them meanwhile.
    pub(crate) fn get_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `get`; no other reference exists.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl Pinned<u32> {
    /// Word `index`, which host and card use at the same time.
    pub(crate) fn word(&self, index: usize) -> &std::sync::atomic::AtomicU32 {
        assert!(index < self.len, "within the memory");
        // SAFETY: aligned, within the memory, and only ever used through this function.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(self.at.as_ptr().add(index)) }
    }
}

impl<T> Drop for Pinned<T> {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`, freed once.
            let _ = unsafe { result::free_host(self.at.as_ptr().cast()) };
        }
    }
}
