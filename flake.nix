{
  description = "Duckpond: mixture-of-experts language models on one host and a flock of cheap PCs";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs = {
    self,
    nixpkgs,
  }: let
    inherit (nixpkgs) lib;
    system = "x86_64-linux";
    # CUDA's compiler at run time is the one package here that is not free.
    pkgs = import nixpkgs {
      inherit system;
      config.allowUnfreePredicate = package: lib.elem (lib.getName package) ["cuda_nvrtc"];
    };
    own = import ./nix/packages pkgs;

    machine = path:
      lib.nixosSystem {
        inherit system;
        modules = [
          self.nixosModules.default
          path
        ];
      };
    toplevel = name: self.nixosConfigurations.${name}.config.system.build.toplevel;
    images = name: self.nixosConfigurations.${name}.config.services.duckpond.firmware.images;

    tests = import ./tests/vm {
      inherit pkgs lib;
      modules = self.nixosModules;
      packages = own;
    };
    unitTests = import ./tests/nix/units.nix {
      inherit lib pkgs;
      modules = [self.nixosModules.default];
    };
  in {
    # With this flake's packages unless the configuration names others.
    nixosModules = {
      host = {config, ...}: {
        key = "duckpond-host";
        imports = [./nixos-modules/host];
        config.services.duckpond = {
          package = lib.mkDefault (
            if config.services.duckpond.gpu.nvidia.enable
            then own.duckpond-cuda
            else own.duckpond
          );
          firmware.package = lib.mkDefault own.duck-firmware;
        };
      };
      duck = {
        key = "duckpond-duck";
        imports = [./nixos-modules/duck];
        config.services.duckd.package = lib.mkDefault own.duckd;
      };
      default.imports = [
        self.nixosModules.host
        self.nixosModules.duck
      ];
    };

    nixosConfigurations = {
      # The reference appliance.
      pigeon = machine ./hosts/pigeon;
      # One PC, ducks and all.
      demo = machine ./hosts/demo;
      # A mini PC that keeps Linux and boots over the network.
      linux-duck = machine ./hosts/linux-duck;
      # What the test with a Debian machine boots; see tests/vm/debian.
      vm = machine ./tests/vm/debian/host.nix;
    };

    overlays.default = final: _: import ./nix/packages final;

    packages.${system} =
      own
      // {
        default = own.duckpond;
        netboot-vm = images "vm";
        netboot-linux-duck = self.nixosConfigurations.linux-duck.config.system.build.netbootImages;
        option-docs = pkgs.callPackage ./nix/packages/option-docs.nix {
          inherit (lib) nixosSystem;
          modules = [self.nixosModules.default];
        };
        deb-units = pkgs.callPackage ./packaging/deb/units.nix {};
      }
      # Once the pond's public key is known.
      // lib.optionalAttrs (images "pigeon" != null) {netboot-pigeon = images "pigeon";};

    apps.${system}.default = {
      type = "app";
      program = "${own.duckpond}/bin/duckpond";
    };

    devShells.${system}.default = pkgs.callPackage ./nix/shell.nix {};

    formatter.${system} = pkgs.alejandra;

    checks.${system} = {
      pigeon-toplevel = toplevel "pigeon";
      demo-toplevel = toplevel "demo";
      linux-duck-toplevel = toplevel "linux-duck";
      vm-toplevel = toplevel "vm";
      units = pkgs.runCommand "unit-tests" {} (
        if unitTests == []
        then "touch $out"
        else throw "unit tests failed:\n${lib.generators.toPretty {multiline = true;} unitTests}"
      );
      rust = own.duckpond.overrideAttrs (_: {
        doCheck = true;
      });
      inherit (self.packages.${system}) option-docs deb-units;
    };

    # Not built by `nix flake check`: they need a virtual machine with KVM for each node. They have never been run.
    legacyPackages.${system}.vmTests = tests;
  };
}
