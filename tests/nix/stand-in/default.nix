# What `import nixpkgs { … }` gives.
{
  system ? "x86_64-linux",
  config ? {},
  overlays ? [],
}: let
  lib = import ./lib;
  base = import ./pkgs.nix {inherit lib system;};
in
  lib.foldl (pkgs: overlay: pkgs // overlay (pkgs // overlay pkgs pkgs) pkgs) base overlays
