# The engine, with the small model that it answers with where no other is named.
{
  lib,
  rustPlatform,
  source,
  version,
  features ? [],
}:
rustPlatform.buildRustPackage {
  pname = "duckpond";
  inherit version;
  src = source;
  cargoLock.lockFile = ../../Cargo.lock;
  cargoBuildFlags = ["--package=duckpond"];
  # Its own tests; scripts/test runs the others, some of which need a network or an emulator.
  cargoTestFlags = ["--package=duckpond"];
  buildFeatures = features;
  # Tests start the program with prompts, and wait for its answers.
  doCheck = false;
  postInstall = ''
    mkdir -p $out/share/duckpond/models
    cp -r models/duckling $out/share/duckpond/models/
    chmod -R u+w $out/share/duckpond/models
    rm -rf $out/share/duckpond/models/duckling/training
  '';
  passthru = {
    dpdk = lib.elem "dpdk" features;
    programs = ["duckpond"];
  };
  meta = {
    description = "Runs mixture-of-experts language models on one host and a flock of small machines";
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    mainProgram = "duckpond";
    platforms = ["x86_64-linux"];
  };
}
