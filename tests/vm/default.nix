# Tests with virtual machines, in the form of NixOS's own. **Never run**: they need nixpkgs and KVM. What is checked without these: syntax,
# that every node's configuration evaluates and builds against a stand-in, and that the scripts are Python. tests/vm/debian runs in their
# place. `nix build .#legacyPackages.x86_64-linux.vmTests.pond` runs one.
{
  pkgs,
  lib,
  modules,
  packages,
}: let
  test = file: pkgs.testers.runNixOSTest (import file {inherit lib pkgs modules packages;});
in {
  pond = test ./pond.nix;
  linux-ducks = test ./linux-ducks.nix;
  upgrade = test ./upgrade.nix;
}
