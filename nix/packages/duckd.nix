# The duck as a Linux process.
{
  lib,
  rustPlatform,
  source,
  version,
}:
rustPlatform.buildRustPackage {
  pname = "duckd";
  inherit version;
  src = source;
  cargoLock.lockFile = ../../Cargo.lock;
  cargoBuildFlags = ["--package=duckd"];
  doCheck = false;
  passthru.programs = ["duckd"];
  meta = {
    description = "Holds experts' weights of a language model in memory and multiplies them for a host";
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    mainProgram = "duckd";
    platforms = ["x86_64-linux"];
  };
}
