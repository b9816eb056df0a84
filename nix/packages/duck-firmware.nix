# What runs on ducks without an operating system: the supervisor, and the kernels' program that a host pushes to it. Both are plain files: what
# they are hashed and signed as must not depend on who may execute them here.
{
  lib,
  rustPlatform,
  source,
  version,
}:
rustPlatform.buildRustPackage {
  pname = "duck-firmware";
  inherit version;
  src = source;
  cargoLock.lockFile = ../../Cargo.lock;
  buildType = "fw";
  cargoBuildFlags = [
    "--package=nest"
    "--package=fp9_kernels"
  ];
  # Nothing may be added to these programs or taken from them: they are the same, byte for byte and with one toolchain, wherever they are built.
  auditable = false;
  dontStrip = true;
  dontPatchELF = true;
  hardeningDisable = ["all"];
  # They run on no Linux.
  doCheck = false;
  installPhase = ''
    runHook preInstall
    built=''${built:-$(dirname $(find target -path '*/fw/nest-elf' | head -n 1))}
    install -D -m 0444 $built/nest-elf $out/share/duckpond/nest.elf
    install -D -m 0444 $built/fp9_kernels $out/share/duckpond/fp9_kernels.elf
    runHook postInstall
  '';
  meta = {
    description = "Firmware of a duck, a machine that holds experts' weights and runs nothing else";
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    platforms = ["x86_64-linux"];
  };
}
