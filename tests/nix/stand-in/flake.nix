# Stands in for nixpkgs where there is none: enough of it to evaluate and build every output of the project's flake.
# README.md says what that proves and what it does not. `lib/` and `built/` are put beside this file by scripts/test-nix.
{
  outputs = {self}: let
    lib =
      import ./lib
      // {
        nixosSystem = import ./nixos-system.nix {inherit lib;};
      };
  in {
    inherit lib;
    legacyPackages.x86_64-linux = import ./default.nix {system = "x86_64-linux";};
  };
}
