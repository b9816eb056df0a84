//! Compiles the kernels for the card at hand, and keeps what was compiled.
//!
//! Each `.cu` file is a program of its own, so that one changed file is compiled alone and all are compiled side by side. A kept image is
//! named by everything that it depends on: source, headers, flags, architecture, compiler. It ends in its digest: one that was cut short or
//! damaged is compiled again.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::error::CudaError;
use super::nvrtc::Nvrtc;

/// Files that others include.
pub(crate) const HEADERS: [(&str, &str); 2] =
    [("abi.cuh", include_str!("../../kernels/abi.cuh")), ("common.cuh", include_str!("../../kernels/common.cuh"))];

/// Programs.
pub(crate) const SOURCES: [(&str, &str); 6] = [
    ("linear.cu", include_str!("../../kernels/linear.cu")),
    ("rows.cu", include_str!("../../kernels/rows.cu")),
    ("select.cu", include_str!("../../kernels/select.cu")),
    ("attend.cu", include_str!("../../kernels/attend.cu")),
    ("route.cu", include_str!("../../kernels/route.cu")),
    ("bench.cu", include_str!("../../kernels/bench.cu")),
];

/// What the compiler is told beside the architecture.
const FLAGS: [&str; 4] = ["--std=c++17", "--fmad=true", "-default-device", "--restrict"];

/// Bytes of a digest.
const DIGEST: usize = blake3::OUT_LEN;

/// An image that the driver loads.
pub(crate) struct Image {
    /// Its source's name.
    pub(crate) file: &'static str,
    /// The CUBIN.
    pub(crate) bytes: Vec<u8>,
}

/// The folder of kept images, if the user has one: `$XDG_CACHE_HOME/duckpond/kernels` or `~/.cache/duckpond/kernels`.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    base.is_absolute().then(|| base.join("duckpond/kernels"))
}

/// All programs, from the cache or compiled.
///
/// # Errors
/// A kernel that does not compile, a compiler that does not know the card.
pub(crate) fn images(nvrtc: &Nvrtc, architecture: i32, cache: Option<&Path>) -> Result<Vec<Image>, CudaError> {
    if !nvrtc.supports(architecture) {
        return Err(CudaError::Architecture {
            nvrtc: nvrtc.version_text(),
            architecture: format!("sm_{architecture}"),
        });
    }
    std::thread::scope(|scope| {
        let one = |(file, source)| scope.spawn(move || image(nvrtc, file, source, architecture, cache));
        let workers: Vec<_> = SOURCES.into_iter().map(one).collect();
        workers.into_iter().map(|worker| worker.join().expect("compiling does not panic")).collect()
    })
}

fn image(
    nvrtc: &Nvrtc,
    file: &'static str,
    source: &str,
    architecture: i32,
    cache: Option<&Path>,
) -> Result<Image, CudaError> {
    let options = options(architecture);
    let kept = cache.map(|folder| folder.join(key(nvrtc, file, source, &options)));
    if let Some(bytes) = kept.as_deref().and_then(read) {
        return Ok(Image { file, bytes });
    }
    let started = std::time::Instant::now();
    let bytes = nvrtc.compile(file, source, &HEADERS, &options).map_err(|log| CudaError::Compile {
        file: file.into(),
        architecture: format!("sm_{architecture}"),
        nvrtc: nvrtc.version_text(),
        line: first_error(&log),
    })?;
    tracing::debug!(file, architecture, milliseconds = started.elapsed().as_millis() as u64, "compiled");
    if let Some(path) = kept
        && let Err(error) = write(&path, &bytes)
    {
        tracing::debug!(path = %path.display(), %error, "a compiled kernel could not be kept");
    }
    Ok(Image { file, bytes })
}

fn options(architecture: i32) -> Vec<String> {
    let mut options = vec![format!("--gpu-architecture=sm_{architecture}")];
    options.extend(FLAGS.map(String::from));
    options
}

/// The name of a kept image.
fn key(nvrtc: &Nvrtc, file: &str, source: &str, options: &[String]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(file.as_bytes());
    part(source.as_bytes());
    HEADERS.iter().for_each(|(_, body)| part(body.as_bytes()));
    options.iter().for_each(|option| part(option.as_bytes()));
    part(nvrtc.version_text().as_bytes());
    format!("{}-{}.cubin", file.trim_end_matches(".cu"), hasher.finalize().to_hex())
}

/// A whole image; `None` if there is none or it is damaged.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path).ok()?;
    let digest = bytes.split_off(bytes.len().checked_sub(DIGEST)?);
    (blake3::hash(&bytes).as_bytes()[..] == digest[..]).then_some(bytes)
}

/// Written beside its place and renamed, so that nobody sees half an image.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().ok_or(std::io::ErrorKind::NotFound)?;
    std::fs::create_dir_all(folder)?;
    let unfinished = path.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    let result = std::fs::File::create(&unfinished)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.write_all(blake3::hash(bytes).as_bytes())
        })
        .and_then(|()| std::fs::rename(&unfinished, path));
    if result.is_err() {
        // What is left over is of no use; if it stays, nobody reads it.
        let _ = std::fs::remove_file(&unfinished);
    }
    result
}

/// The line of a compiler's log that says what is wrong.
fn first_error(log: &str) -> String {
    let line = log.lines().find(|line| line.contains("error")).or_else(|| log.lines().find(|line| !line.is_empty()));
    line.unwrap_or("no reason given").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::abi;

    /// Says that there is no compiler. The test passes, but fails with `DUCKPOND_REQUIRE_NVRTC=1`.
    fn nvrtc() -> Option<Nvrtc> {
        match Nvrtc::load() {
            Ok(nvrtc) => Some(nvrtc),
            Err(error) => {
                // Not by `println!`, whose lines a passing test keeps to itself.
                let _ = writeln!(std::io::stderr(), "GPU kernels are not compiled: {error}");
                let required = std::env::var("DUCKPOND_REQUIRE_NVRTC").is_ok_and(|value| value == "1");
                assert!(!required, "DUCKPOND_REQUIRE_NVRTC is set, and {error}");
                None
            }
        }
    }

    #[test]
    fn every_kernel_compiles_for_both_cards() {
        let Some(nvrtc) = nvrtc() else { return };
        for architecture in [90, 120] {
            let images = images(&nvrtc, architecture, None).unwrap_or_else(|error| panic!("{error}"));
            assert!(images.iter().all(|image| image.bytes.starts_with(b"\x7fELF")), "images are ELF files");
            for kernel in super::super::kernels::Kernel::ALL {
                let name = kernel.name().as_bytes();
                let holders = images.iter().filter(|i| i.bytes.windows(name.len()).any(|w| w == name)).count();
                assert!(holders > 0, "no image has {} for sm_{architecture}", kernel.name());
            }
        }
    }

    #[test]
    fn host_and_kernels_agree_on_every_offset() {
        let Some(nvrtc) = nvrtc() else { return };
        // NVRTC has neither <cstddef> nor the builtin; this is its front end's own word for a constant address.
        let mut source = String::from(
            "#include \"abi.cuh\"\n#define OFFSET(type, member) ((u64)__INTADDR__(&(((type *)0)->member)))\n",
        );
        for (name, size, fields) in abi::layouts() {
            source += &format!("static_assert(sizeof({name}) == {size}, \"size of {name}\");\n");
            for (field, offset) in fields {
                source += &format!("static_assert(OFFSET({name}, {field}) == {offset}, \"{name}.{field}\");\n");
            }
        }
        let numbers = [
            ("PAGE", abi::PAGE),
            ("BLOCK", abi::BLOCK),
            ("FEW", abi::FEW),
            ("KEYS", abi::KEYS),
            ("LINEARS", abi::LINEARS),
            ("ROWS", abi::ROWS),
            ("NODES", abi::NODES),
        ];
        for (name, value) in numbers {
            source += &format!("static_assert({name} == {value}, \"{name}\");\n");
        }
        for (name, value) in [
            ("E4M3", abi::E4M3),
            ("BF16", abi::BF16),
            ("F32", abi::F32),
            ("EXACT", abi::EXACT),
            ("BF16_MODE", abi::BF16_MODE),
            ("FP8_MODE", abi::FP8_MODE),
            ("ROUND", abi::ROUND),
            ("QUANTISE", abi::QUANTISE),
            ("WANTED", abi::WANTED),
            ("EMBED", abi::row::EMBED),
            ("RECALL", abi::row::RECALL),
            ("KEEP", abi::row::KEEP),
            ("RMS_NORM", abi::row::RMS_NORM),
            ("ADD_RMS_NORM", abi::row::ADD_RMS_NORM),
            ("LAYER_NORM", abi::row::LAYER_NORM),
            ("ROTATE", abi::row::ROTATE),
            ("APPEND", abi::row::APPEND),
            ("GATED", abi::row::GATED),
            ("COMBINE", abi::row::COMBINE),
            ("WAIT", abi::row::WAIT),
            ("HADAMARD", abi::row::HADAMARD),
            ("QUANTISE_ROW", abi::row::QUANTISE_ROW),
        ] {
            source += &format!("static_assert((int){name} == {value}, \"{name}\");\n");
        }
        let result = nvrtc.compile("layouts.cu", &source, &HEADERS, &options(90));
        if let Err(log) = result {
            panic!("{log}");
        }
    }

    #[test]
    fn a_fault_is_told_by_its_first_error() {
        let log = "NVRTC_COMPILATION\nrows.cu(3): warning #177-D: unused\nrows.cu(7): error: expected a \";\"\n1 error";
        assert_eq!(first_error(log), "rows.cu(7): error: expected a \";\"".to_owned());
        let Some(nvrtc) = nvrtc() else { return };
        let log = nvrtc.compile("bad.cu", "__global__ void f() { nonsense }", &[], &options(90)).expect_err("no CUDA");
        assert!(first_error(&log).contains("bad.cu(1): error"), "{log}");
    }

    #[test]
    fn a_damaged_image_is_not_used() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("deep/image.cubin");
        assert_eq!(read(&path), None);
        write(&path, b"an image").expect("room");
        assert_eq!(read(&path).as_deref(), Some(&b"an image"[..]));
        let whole = std::fs::read(&path).expect("written");
        for damaged in [&whole[..whole.len() - 1], &whole[1..], &whole[..5], b""] {
            std::fs::write(&path, damaged).expect("room");
            assert_eq!(read(&path), None);
        }
    }
}
