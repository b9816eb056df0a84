# Every package, from a package set: the flake's overlay and its `packages` are both made of this.
pkgs: let
  inherit (pkgs) lib;
  manifest = lib.importTOML ../../engine/duckpond/Cargo.toml;
  source = import ./source.nix {inherit lib;};
  version = (lib.importTOML ../../Cargo.toml).workspace.package.version;
in
  rec {
    duckpond = pkgs.callPackage ./duckpond.nix {inherit source version;};
    # The same program: CUDA is loaded while it runs. Only where its libraries are is added.
    duckpond-cuda = pkgs.callPackage ./duckpond-cuda.nix {inherit duckpond;};
    duckd = pkgs.callPackage ./duckd.nix {inherit source version;};
    duck-firmware = pkgs.callPackage ./duck-firmware.nix {inherit source version;};
  }
  # The engine has DPDK ports once its crate has the feature; until then there is no package that claims to.
  // lib.optionalAttrs (manifest.features or {} ? dpdk) {
    duckpond-dpdk = pkgs.callPackage ./duckpond.nix {
      inherit source version;
      features = ["dpdk"];
    };
  }
