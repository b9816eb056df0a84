# The reference appliance: an i9-13900K with an NVIDIA card and one four-port E810 whose functions belong to the engine; 32 ducks. Its pond is pond.nix
# beside this file. Where to install it, and in which order, is in docs/deployment.md.
{lib, ...}: let
  # Used as soon as they are there: secrets/README.md says how to make them.
  secret = file: lib.optional (builtins.pathExists file) file;
  one = list:
    if list == []
    then null
    else lib.head list;
  public = one (secret ../../secrets/pigeon/pond.pub);
in {
  networking.hostName = "pigeon";
  nixpkgs.hostPlatform = "x86_64-linux";
  system.stateVersion = "26.05";

  # Machine: as the installer labels its partitions. The model's disk holds 1.4 TB while it is converted.
  boot.loader.systemd-boot.enable = true;
  boot.loader.efi.canTouchEfiVariables = true;
  fileSystems."/" = {
    device = "/dev/disk/by-label/nixos";
    fsType = "ext4";
  };
  fileSystems."/boot" = {
    device = "/dev/disk/by-label/BOOT";
    fsType = "vfat";
  };
  fileSystems."/var/lib/duckpond" = {
    device = "/dev/disk/by-label/duckpond";
    fsType = "ext4";
    options = ["noatime"];
    # The kernels are signed there when the system is activated, which is before other file systems are mounted.
    neededForBoot = true;
  };
  hardware.cpu.intel.updateMicrocode = true;
  hardware.enableRedistributableFirmware = true;
  # NVIDIA's driver is not free.
  nixpkgs.config.allowUnfree = true;

  # Management: the 2.5 GbE port on the board, with an address by DHCP. The ducks' ports have none, and the kernel never sees them.
  networking.useNetworkd = true;
  networking.useDHCP = false;
  systemd.network.networks."10-management" = {
    matchConfig.Driver = "r8169";
    networkConfig.DHCP = "yes";
  };
  services.openssh.enable = true;

  services.duckpond = {
    enable = true;
    pond = import ./pond.nix;
    publicKey =
      if public == null
      then null
      else lib.removeSuffix "\n" (builtins.readFile public);
    secrets = {
      key = one (secret ../../secrets/pigeon/pond-key.age);
      apiKeys = one (secret ../../secrets/pigeon/api-keys.age);
    };

    iommu = "intel";
    cpus.maxCState = 1;
    gpu.nvidia.enable = true;

    # For this machine alone until there are API keys: then say host = "0.0.0.0" and openFirewall = true.
    servedName = "deepseek-v3.2";
    logs.retention = "90day";
  };
}
