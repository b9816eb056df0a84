# What cargo builds from, and nothing that changes more often.
{lib}: let
  root = ../..;
  wanted = [
    "Cargo.toml"
    "Cargo.lock"
    "engine"
    "duck-firmware"
    "models"
    "tests"
    "LICENSE-APACHE"
    "LICENSE-MIT"
    "docs"
    # A test reads the committed description.
    "hosts"
  ];
  # Below tests/nix and tests/vm there is nothing to compile for a package.
  unwanted = [
    "tests/nix/stand-in"
    "tests/nix/lib"
    "tests/vm"
  ];
  below = path: lib.removePrefix "${toString root}/" (toString path);
in
  lib.cleanSourceWith {
    src = root;
    name = "duckpond-source";
    filter = path: _: let
      relative = below path;
    in
      lib.elem (lib.head (lib.splitString "/" relative)) wanted
      && !(lib.elem relative unwanted)
      && baseNameOf path != "target";
  }
