//! The loaded kernels, and how one is launched.

use std::ffi::{CString, c_void};
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::abi;
use super::compile::images;
use super::device::{Device, failed};
use super::error::CudaError;
use super::nvrtc::Nvrtc;
use super::stream::Stream;

/// A kernel by its entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kernels' files describe them")]
pub enum Kernel {
    LinearOne,
    LinearTwo,
    LinearFew,
    LinearMany,
    LinearPlain,
    Pack,
    Rows,
    Route,
    IndexScores,
    IndexScoresPlain,
    SelectTop,
    Attend,
    AttendMerge,
    AttendPlain,
    ArgMax,
    Fill,
    ReadAll,
}

impl Kernel {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kernel; 17] = [
        Kernel::LinearOne,
        Kernel::LinearTwo,
        Kernel::LinearFew,
        Kernel::LinearMany,
        Kernel::LinearPlain,
        Kernel::Pack,
        Kernel::Rows,
        Kernel::Route,
        Kernel::IndexScores,
        Kernel::IndexScoresPlain,
        Kernel::SelectTop,
        Kernel::Attend,
        Kernel::AttendMerge,
        Kernel::AttendPlain,
        Kernel::ArgMax,
        Kernel::Fill,
        Kernel::ReadAll,
    ];

    /// The entry point.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::LinearOne => "linear_one",
            Kernel::LinearTwo => "linear_two",
            Kernel::LinearFew => "linear_few",
            Kernel::LinearMany => "linear_many",
            Kernel::LinearPlain => "linear_plain",
            Kernel::Pack => "pack",
            Kernel::Rows => "rows",
            Kernel::Route => "route",
            Kernel::IndexScores => "index_scores",
            Kernel::IndexScoresPlain => "index_scores_plain",
            Kernel::SelectTop => "select_top",
            Kernel::Attend => "attend",
            Kernel::AttendMerge => "attend_merge",
            Kernel::AttendPlain => "attend_plain",
            Kernel::ArgMax => "argmax",
            Kernel::Fill => "fill",
            Kernel::ReadAll => "read_all",
        }
    }

    /// The file that has it.
    fn file(self) -> &'static str {
        match self {
            Kernel::LinearOne
            | Kernel::LinearTwo
            | Kernel::LinearFew
            | Kernel::LinearMany
            | Kernel::LinearPlain
            | Kernel::Pack => "linear.cu",
            Kernel::Rows => "rows.cu",
            Kernel::Route | Kernel::ArgMax => "route.cu",
            Kernel::IndexScores | Kernel::IndexScoresPlain | Kernel::SelectTop => "select.cu",
            Kernel::Attend | Kernel::AttendMerge | Kernel::AttendPlain => "attend.cu",
            Kernel::Fill | Kernel::ReadAll => "bench.cu",
        }
    }

    /// Threads of a block, where calls do not say it.
    pub(crate) fn threads(self) -> u32 {
        match self {
            Kernel::Rows | Kernel::ReadAll => 512,
            Kernel::SelectTop | Kernel::ArgMax => 1024,
            Kernel::AttendMerge | Kernel::AttendPlain => 128,
            _ => 256,
        }
    }
}

/// The one parameter of a kernel, by value.
#[derive(Clone)]
pub(crate) enum Parameters {
    Linears(Box<abi::Linears>),
    Pack(abi::Pack),
    Rows(Box<abi::Rows>),
    Route(Box<abi::Route>),
    Select(Box<abi::Select>),
    Attend(Box<abi::Attend>),
    ArgMax(abi::ArgMax),
    Fill(abi::Fill),
    /// Address, number of 16-byte words, and where a result would go.
    ReadAll(u64, u64, u64),
}

/// A kernel with everything that its launch needs.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) kernel: Kernel,
    pub(crate) grid: [u32; 3],
    /// Of a block.
    pub(crate) threads: u32,
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    pub(crate) parameters: Parameters,
    /// May start before the launch in front of it has ended: the kernels wait for it themselves.
    pub(crate) early: bool,
}

/// All kernels, loaded on a card.
pub(crate) struct Kernels {
    modules: Vec<sys::CUmodule>,
    functions: Vec<sys::CUfunction>,
    /// Dynamic shared memory of `linear_many`.
    linear_many_shared: u32,
    device: Arc<Device>,
}

// SAFETY: handles of the driver, which may be used from any thread that binds the context.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Compiles (or finds compiled) and loads them.
    pub(crate) fn load(device: &Arc<Device>, cache: Option<&Path>) -> Result<Kernels, CudaError> {
        let nvrtc = Nvrtc::load()?;
        device.check_driver(&nvrtc)?;
        let images = images(&nvrtc, device.properties().architecture(), cache)?;
        device.bind()?;
        let mut kernels =
            Kernels { modules: Vec::new(), functions: Vec::new(), linear_many_shared: 0, device: device.clone() };
        for image in &images {
            // SAFETY: a whole CUBIN of this card's architecture.
            let module = unsafe { result::module::load_data(image.bytes.as_ptr().cast()) };
            kernels.modules.push(module.map_err(|error| failed(&format!("loading {}", image.file), error))?);
        }
        // Asking for a function loads its code, so that no launch has to while another kernel waits for the host.
        for kernel in Kernel::ALL {
            let name = CString::new(kernel.name()).expect("no zero byte");
            let found = images.iter().position(|image| image.file == kernel.file()).map(|at| kernels.modules[at]);
            // SAFETY: the modules are loaded.
            let find = |module: sys::CUmodule| unsafe { result::module::get_function(module, name.clone()) }.ok();
            kernels.functions.push(found.and_then(find).ok_or_else(|| CudaError::Failed {
                what: "loading kernels".into(),
                why: format!("{} has no {}", kernel.file(), kernel.name()),
            })?);
        }
        let linear = images.iter().position(|image| image.file == Kernel::LinearMany.file());
        let linear = linear.map(|at| kernels.modules[at]).expect("its function was found there");
        kernels.linear_many_shared = Kernels::number(linear, "linear_many_shared")?;
        kernels.allow(Kernel::LinearMany, kernels.linear_many_shared as usize)?;
        // As much as the card has: the binder chooses so that it fits.
        for kernel in [Kernel::LinearOne, Kernel::LinearTwo, Kernel::LinearFew] {
            kernels.allow(kernel, device.properties().shared)?;
        }
        Ok(kernels)
    }

    /// Dynamic shared memory of `linear_many`.
    pub(crate) fn linear_many_shared(&self) -> u32 {
        self.linear_many_shared
    }

    /// Lets a kernel have so many bytes of dynamic shared memory.
    pub(crate) fn allow(&self, kernel: Kernel, bytes: usize) -> Result<(), CudaError> {
        use sys::CUfunction_attribute_enum as Attribute;
        let function = self.functions[kernel as usize];
        self.device.bind()?;
        // SAFETY: the function is loaded.
        let fixed = unsafe {
            result::function::get_function_attribute(function, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        };
        let fixed = fixed.map_err(|error| failed("asking for a kernel's shared memory", error))?;
        let needed = bytes + usize::try_from(fixed).unwrap_or(0);
        let properties = self.device.properties();
        let refused = || CudaError::SharedMemory {
            kernel: kernel.name().into(),
            needed,
            found: properties.shared,
            device: properties.name.clone(),
        };
        if needed > properties.shared {
            return Err(refused());
        }
        let bytes = i32::try_from(bytes).map_err(|_| refused())?;
        // SAFETY: the function is loaded.
        unsafe {
            result::function::set_function_attribute(
                function,
                Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                bytes,
            )
        }
        .map_err(|_| refused())
    }

    /// A constant that a module exports.
    fn number(module: sys::CUmodule, name: &str) -> Result<u32, CudaError> {
        let text = CString::new(name).expect("no zero byte");
        let nothing = || CudaError::Failed { what: "loading kernels".into(), why: format!("no image has {name}") };
        // SAFETY: the module is loaded; the constant is four bytes.
        let (address, bytes) = unsafe { result::module::get_global(module, text) }.map_err(|_| nothing())?;
        if bytes != 4 {
            return Err(nothing());
        }
        let mut value = [0u32];
        // SAFETY: four bytes there, four here.
        unsafe { result::memcpy_dtoh_sync(&mut value, address) }
            .map_err(|error| failed("reading a constant", error))?;
        Ok(value[0])
    }

    /// Enqueues a launch. `early` calls start before the one in front has ended if `overlap` allows it.
    pub(crate) fn launch(&self, stream: &Stream, call: &Call, overlap: bool) -> Result<(), CudaError> {
        let mut pointers = [std::ptr::null_mut(); 3];
        let mut set = |at: [*const c_void; 3]| pointers = at.map(<*const c_void>::cast_mut);
        let none = std::ptr::null();
        match &call.parameters {
            Parameters::Linears(p) => set([std::ptr::from_ref(&**p).cast(), none, none]),
            Parameters::Pack(p) => set([std::ptr::from_ref(p).cast(), none, none]),
            Parameters::Rows(p) => set([std::ptr::from_ref(&**p).cast(), none, none]),
            Parameters::Route(p) => set([std::ptr::from_ref(&**p).cast(), none, none]),
            Parameters::Select(p) => set([std::ptr::from_ref(&**p).cast(), none, none]),
            Parameters::Attend(p) => set([std::ptr::from_ref(&**p).cast(), none, none]),
            Parameters::Fill(p) => set([std::ptr::from_ref(p).cast(), none, none]),
            Parameters::ArgMax(p) => set([
                std::ptr::from_ref(&p.logits).cast(),
                std::ptr::from_ref(&p.vocab).cast(),
                std::ptr::from_ref(&p.out).cast(),
            ]),
            Parameters::ReadAll(at, count, sink) => {
                set([std::ptr::from_ref(at).cast(), std::ptr::from_ref(count).cast(), std::ptr::from_ref(sink).cast()])
            }
        }
        let mut attribute = sys::CUlaunchAttribute_st {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig_st {
            gridDimX: call.grid[0],
            gridDimY: call.grid[1],
            gridDimZ: call.grid[2],
            blockDimX: call.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: call.shared,
            hStream: stream.handle(),
            attrs: &mut attribute,
            numAttrs: u32::from(overlap && call.early),
        };
        // SAFETY: the parameters are copied by the call; their types are those of the kernel (a test compares layouts), and the addresses in
        // them belong to owners that outlive the stream's work.
        unsafe {
            sys::cuLaunchKernelEx(
                &config,
                self.functions[call.kernel as usize],
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
        .result()
        .map_err(|error| failed(&format!("launching {}", call.kernel.name()), error))
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            for &module in &self.modules {
                // SAFETY: loaded by `load`, unloaded once.
                let _ = unsafe { result::module::unload(module) };
            }
        }
    }
}
