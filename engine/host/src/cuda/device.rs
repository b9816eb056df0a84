//! The card: found at run time, its properties, and the context that all calls are made in.
//!
//! Nothing links against CUDA. [`probe`] says what is there without failing; [`Device::open`] wants one and says in one line why there is none.
//! The calls that `cudarc` wraps with tracking of events are not used: an event from outside would make the capture of a graph fail.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::error::CudaError;
use super::nvrtc::Nvrtc;

/// Compute capability that the kernels need: asynchronous copies and products of bf16.
const LEAST: (i32, i32) = (8, 0);

/// What is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Name of the card.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Newest CUDA that the driver serves: 12080 is 12.8.
    pub driver: i32,
    /// Bytes of memory.
    pub total: u64,
    /// Bytes free when looked at.
    pub free: u64,
    /// Multiprocessors.
    pub processors: u32,
    /// Bytes of shared memory that a block may have.
    pub shared: usize,
}

impl Properties {
    /// The number in names such as `sm_120`.
    pub fn architecture(&self) -> i32 {
        self.capability.0 * 10 + self.capability.1
    }

    /// The driver's CUDA version as people write it.
    pub fn driver_text(&self) -> String {
        version(self.driver)
    }
}

/// What `duckpond doctor` shows.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The card, or why none can be used.
    pub device: Result<Properties, CudaError>,
    /// Version and place of NVRTC, or why it cannot be used.
    pub nvrtc: Result<(String, String), CudaError>,
}

/// Looks for a card alone.
///
/// # Errors
/// Why none can be used.
pub fn device() -> Result<Properties, CudaError> {
    Device::open(0).map(|device| device.properties().clone())
}

/// Looks for card and compiler; holds neither.
pub fn probe() -> Probe {
    let device = device();
    let nvrtc = Nvrtc::load().map(|nvrtc| (nvrtc.version_text(), nvrtc.path().to_owned()));
    Probe { device, nvrtc }
}

/// An opened card.
pub(crate) struct Device {
    handle: sys::CUdevice,
    context: sys::CUcontext,
    properties: Properties,
}

// SAFETY: handles of the driver, which may be used from any thread that binds the context.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// A function that the driver's library lacks: the first of all, or the newest of those that are called. `cudarc` would panic where it is called.
fn missing() -> Option<&'static str> {
    // The order in which `cudarc` looks.
    let load = |name: &str| {
        // SAFETY: the library that `cudarc` has loaded already, whose initialisers have run.
        unsafe { libloading::Library::new(name) }.ok()
    };
    let library = ["libcuda.so", "libcuda.so.1"].into_iter().find_map(load)?;
    ["cuInit", "cuLaunchKernelEx"].into_iter().find(|name| {
        // SAFETY: only whether it is there is asked; it is not called.
        unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err()
    })
}

impl Device {
    /// Opens the card with this number among those that CUDA_VISIBLE_DEVICES leaves.
    pub(crate) fn open(number: i32) -> Result<Arc<Device>, CudaError> {
        // SAFETY: asks the system's linker for libcuda, whose initialisers are trusted.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoDriver);
        }
        if let Some(name) = missing() {
            return Err(CudaError::DriverFailed(format!("its library has no {name}; install a newer driver")));
        }
        let none = |error: result::DriverError| match error.0 {
            sys::CUresult::CUDA_ERROR_NO_DEVICE | sys::CUresult::CUDA_ERROR_INVALID_DEVICE => CudaError::NoDevice,
            _ => CudaError::DriverFailed(name_of(error)),
        };
        result::init().map_err(none)?;
        let handle = result::device::get(number).map_err(none)?;
        // SAFETY: `handle` is the driver's; the context is released in `drop`.
        let context = unsafe { result::primary_ctx::retain(handle) }.map_err(none)?;
        let mut device = Device { handle, context, properties: Properties::default() };
        device.bind()?;
        device.properties = device.read_properties()?;
        let found = device.properties.capability;
        if found < LEAST {
            return Err(CudaError::TooOldDevice {
                name: device.properties.name.clone(),
                found: format!("{}.{}", found.0, found.1),
                needed: format!("{}.{}", LEAST.0, LEAST.1),
            });
        }
        Ok(Arc::new(device))
    }

    /// What it is.
    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Makes this thread's calls go to the card. Cheap; every entry into this module's parts begins with it.
    pub(crate) fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: retained until `drop`.
        unsafe { result::ctx::set_current(self.context) }.map_err(|error| failed("binding the context", error))
    }

    /// Bytes free, and bytes in all.
    pub(crate) fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.bind()?;
        let (free, total) = result::mem_get_info().map_err(|error| failed("asking for free memory", error))?;
        Ok((free as u64, total as u64))
    }

    /// Refuses a driver that does not run programs of this compiler.
    pub(crate) fn check_driver(&self, nvrtc: &Nvrtc) -> Result<(), CudaError> {
        // Within a major version a driver runs images of later compilers too, as long as it knows the card.
        let major = nvrtc.version().0;
        if self.properties.driver / 1000 < major {
            return Err(CudaError::DriverTooOld {
                found: version(self.properties.driver),
                needed: format!("{major}.0"),
                nvrtc: nvrtc.version_text(),
            });
        }
        Ok(())
    }

    fn read_properties(&self) -> Result<Properties, CudaError> {
        use sys::CUdevice_attribute_enum as Attribute;
        let ask = |error| failed("asking for the card's properties", error);
        let attribute = |which| {
            // SAFETY: the handle is the driver's.
            unsafe { result::device::get_attribute(self.handle, which) }.map_err(ask)
        };
        let mut driver = 0;
        // SAFETY: writes one integer.
        unsafe { sys::cuDriverGetVersion(&mut driver) }.result().map_err(ask)?;
        let (free, total) = self.memory()?;
        Ok(Properties {
            name: result::device::get_name(self.handle).map_err(ask)?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            driver,
            total,
            free,
            processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.try_into().unwrap_or(1),
            shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
                .try_into()
                .unwrap_or(0),
        })
    }
}

impl Default for Properties {
    fn default() -> Self {
        Properties { name: String::new(), capability: (0, 0), driver: 0, total: 0, free: 0, processors: 1, shared: 0 }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`; whatever was made in it holds an `Arc` of this.
        let _ = unsafe { result::primary_ctx::release(self.handle) };
    }
}

/// `12080` as `12.8`.
fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// A failed call as an error of one line.
pub(crate) fn failed(what: &str, error: result::DriverError) -> CudaError {
    CudaError::Failed { what: what.into(), why: name_of(error) }
}

fn name_of(error: result::DriverError) -> String {
    let name = error.error_name().map_or_else(|_| format!("{:?}", error.0), |n| n.to_string_lossy().into_owned());
    match error.error_string() {
        Ok(text) => format!("{name} ({})", text.to_string_lossy()),
        Err(_) => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_never_fails_and_says_in_one_line_what_is_missing() {
        let Probe { device, nvrtc } = probe();
        let lines = [device.err().map(|e| e.to_string()), nvrtc.err().map(|e| e.to_string())];
        assert!(lines.iter().flatten().all(|line| !line.is_empty() && !line.contains('\n')), "{lines:?}");
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!((version(12080), version(13000)), ("12.8".to_owned(), "13.0".to_owned()));
    }
}
