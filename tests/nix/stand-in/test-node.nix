# What a node of a NixOS test may set beside a machine's options: nixos/modules/virtualisation/qemu-vm.nix 00008e8eb762.
{lib, ...}: let
  inherit (lib) mkOption types;
in {
  options.virtualisation = {
    vlans = mkOption {
      type = types.listOf types.ints.unsigned;
      default = [1];
    };
    memorySize = mkOption {
      type = types.ints.positive;
      default = 1024;
    };
    cores = mkOption {
      type = types.ints.positive;
      default = 1;
    };
    qemu.options = mkOption {
      type = types.listOf types.str;
      default = [];
    };
    additionalPaths = mkOption {
      type = types.listOf types.path;
      default = [];
    };
  };
  config = {
    nixpkgs.hostPlatform = lib.mkDefault "x86_64-linux";
    system.stateVersion = lib.mkDefault "26.05";
    fileSystems = lib.mkDefault {};
  };
}
