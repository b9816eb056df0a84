# The engine beside CUDA's compiler at run time (NVRTC) and the place where NixOS puts the driver. Nothing is linked: without a card the program
# runs on the processor, as ever.
{
  lib,
  symlinkJoin,
  makeWrapper,
  cudaPackages,
  duckpond,
}:
symlinkJoin {
  name = "duckpond-cuda";
  paths = [duckpond];
  nativeBuildInputs = [makeWrapper];
  postBuild = ''
    wrapProgram $out/bin/duckpond --suffix LD_LIBRARY_PATH : ${
      lib.makeLibraryPath [cudaPackages.cuda_nvrtc]
    }:/run/opengl-driver/lib
  '';
  inherit (duckpond) passthru meta;
}
