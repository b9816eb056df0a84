// How programs without an operating system are linked: what the build scripts of all of them share. A file that they include, since a crate
// that they depended on could be no part of `bare`: its memory functions have no place in a build script.

/// Has the package's programs linked by `script` alone, without a C library.
fn link(script: &str) {
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--build-id=none",
        "-Wl,-z,max-page-size=4096",
        "-Wl,-z,norelro",
        "-Wl,--no-eh-frame-hdr",
        "-Wl,--no-dynamic-linker",
    ] {
        println!("cargo:rustc-link-arg-bins={argument}");
    }
    let folder = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rustc-link-arg-bins=-Wl,-T,{folder}/{script}");
    println!("cargo:rerun-if-changed={script}");
}
