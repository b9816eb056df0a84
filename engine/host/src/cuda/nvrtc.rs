//! NVRTC, NVIDIA's compiler for CUDA C, as a library that is looked for at run time.
//!
//! Its nine functions are bound here rather than through `cudarc`, which can neither be told a folder nor asked without a panic.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::error::CudaError;

/// Folder (or file) of the library, for installations that the system's linker does not know, such as the wheel `nvidia-cuda-nvrtc`.
pub const NVRTC_VARIABLE: &str = "DUCKPOND_NVRTC";

/// Names of the library, the newest first.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Where installers put it.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"];

type Program = *mut std::ffi::c_void;

/// The loaded compiler.
pub struct Nvrtc {
    functions: Functions,
    /// Major and minor.
    version: (i32, i32),
    path: String,
    /// Holds the code that `functions` point to.
    _library: Library,
}

struct Functions {
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    architectures: Vec<c_int>,
}

impl Nvrtc {
    /// Finds and loads it.
    ///
    /// # Errors
    /// It is not there, or is no NVRTC.
    pub fn load() -> Result<Nvrtc, CudaError> {
        let mut searched = Vec::new();
        for candidate in candidates() {
            searched.push(candidate.display().to_string());
            // A path is a file: the linker would wait for a named pipe, and nothing could end that.
            let named = candidate.parent().is_some_and(|folder| !folder.as_os_str().is_empty());
            if named && !candidate.is_file() {
                continue;
            }
            preload_builtins(&candidate);
            // SAFETY: loading runs the library's initialisers; a file of NVRTC's name is trusted as the system's linker would.
            if let Ok(library) = unsafe { Library::new(&candidate) } {
                return Nvrtc::bind(library, candidate.display().to_string());
            }
        }
        Err(CudaError::NoNvrtc { searched: searched.join(", ") })
    }

    fn bind(library: Library, path: String) -> Result<Nvrtc, CudaError> {
        fn get<T: Copy>(library: &Library, path: &str, name: &str) -> Result<T, CudaError> {
            // SAFETY: the types are those of nvrtc.h, unchanged since CUDA 11.
            unsafe { library.get::<T>(name.as_bytes()) }
                .map(|symbol| *symbol)
                .map_err(|_| CudaError::Symbol { library: path.into(), symbol: name.into() })
        }
        type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
        let version: Version = get(&library, &path, "nvrtcVersion")?;
        let count: Count = get(&library, &path, "nvrtcGetNumSupportedArchs")?;
        let list: Count = get(&library, &path, "nvrtcGetSupportedArchs")?;
        let (mut major, mut minor, mut number) = (0, 0, 0);
        // SAFETY: both write two integers.
        unsafe {
            version(&mut major, &mut minor);
            count(&mut number);
        }
        let mut architectures = vec![0; usize::try_from(number).unwrap_or(0)];
        if !architectures.is_empty() {
            // SAFETY: there is room for the number that it gave.
            unsafe { list(architectures.as_mut_ptr()) };
        }
        let functions = Functions {
            create: get(&library, &path, "nvrtcCreateProgram")?,
            compile: get(&library, &path, "nvrtcCompileProgram")?,
            destroy: get(&library, &path, "nvrtcDestroyProgram")?,
            log_size: get(&library, &path, "nvrtcGetProgramLogSize")?,
            log: get(&library, &path, "nvrtcGetProgramLog")?,
            cubin_size: get(&library, &path, "nvrtcGetCUBINSize")?,
            cubin: get(&library, &path, "nvrtcGetCUBIN")?,
            error: get(&library, &path, "nvrtcGetErrorString")?,
            architectures,
        };
        Ok(Nvrtc { functions, version: (major, minor), path, _library: library })
    }

    /// Major and minor.
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// As people write it: `12.8`.
    pub fn version_text(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// Where it was found.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether it can compile for a real architecture such as 90 or 120.
    pub fn supports(&self, architecture: i32) -> bool {
        self.functions.architectures.contains(&architecture)
    }

    /// Compiles to a CUBIN.
    ///
    /// # Errors
    /// The compiler's log.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[(&str, &str)],
        options: &[String],
    ) -> Result<Vec<u8>, String> {
        let text = |s: &str| CString::new(s).map_err(|_| format!("{name}: a zero byte in the source"));
        let (name, source) = (text(name)?, text(source)?);
        let bodies = headers.iter().map(|(_, body)| text(body)).collect::<Result<Vec<_>, _>>()?;
        let names = headers.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>, _>>()?;
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let pointers = |list: &[CString]| list.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
        let (bodies_at, names_at, options_at) = (pointers(&bodies), pointers(&names), pointers(&options));
        let f = &self.functions;
        let mut program: Program = std::ptr::null_mut();
        let count = |n: usize| c_int::try_from(n).expect("a handful");
        // SAFETY: all strings end in zero and outlive the calls; lists have the lengths given; the program is destroyed once, at the end,
        // and buffers have the sizes that were asked for.
        unsafe {
            let made = (f.create)(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                count(headers.len()),
                bodies_at.as_ptr(),
                names_at.as_ptr(),
            );
            if made != 0 {
                return Err(self.error(made));
            }
            let compiled = (f.compile)(program, count(options.len()), options_at.as_ptr());
            let result = if compiled == 0 {
                self.cubin(program)
            } else {
                Err(format!("{}\n{}", self.error(compiled), self.log(program)))
            };
            (f.destroy)(&mut program);
            result
        }
    }

    fn error(&self, code: c_int) -> String {
        // SAFETY: a static string for every code.
        unsafe { CStr::from_ptr((self.functions.error)(code)) }.to_string_lossy().into_owned()
    }

    /// # Safety
    /// `program` was made and not destroyed.
    unsafe fn log(&self, program: Program) -> String {
        let mut size = 0;
        // SAFETY: the caller's; the buffer has the size asked for.
        unsafe {
            (self.functions.log_size)(program, &mut size);
            let mut log = vec![0u8; size];
            (self.functions.log)(program, log.as_mut_ptr().cast());
            String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned()
        }
    }

    /// # Safety
    /// As [`Nvrtc::log`]; it was compiled for a real architecture.
    unsafe fn cubin(&self, program: Program) -> Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the caller's; the buffer has the size asked for.
        unsafe {
            let code = (self.functions.cubin_size)(program, &mut size);
            if code != 0 || size == 0 {
                return Err(self.error(code));
            }
            let mut image = vec![0u8; size];
            match (self.functions.cubin)(program, image.as_mut_ptr().cast()) {
                0 => Ok(image),
                code => Err(self.error(code)),
            }
        }
    }
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NVRTC {} of {}", self.version_text(), self.path)
    }
}

/// Where it may be, in order.
fn candidates() -> Vec<PathBuf> {
    let mut list = Vec::new();
    if let Some(named) = std::env::var_os(NVRTC_VARIABLE).filter(|v| !v.is_empty()) {
        let named = PathBuf::from(named);
        if named.is_dir() {
            list.extend(NAMES.iter().map(|name| named.join(name)));
        } else {
            list.push(named);
        }
    }
    // Names alone: the system's linker, with LD_LIBRARY_PATH.
    list.extend(NAMES.iter().map(PathBuf::from));
    list.extend(FOLDERS.iter().flat_map(|folder| NAMES.iter().map(move |name| Path::new(folder).join(name))));
    list
}

/// NVRTC opens its library of built-in functions by name alone, which only works from a folder that the linker knows, or once it is loaded.
fn preload_builtins(nvrtc: &Path) {
    let Some(folder) = nvrtc.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("libnvrtc-builtins.so.") && entry.path().is_file() {
            // SAFETY: as for NVRTC itself.
            if let Ok(library) = unsafe { Library::new(entry.path()) } {
                std::mem::forget(library);
            }
        }
    }
}
