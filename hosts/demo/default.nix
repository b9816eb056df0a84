# One PC with NixOS, nothing special in it: the engine with ducks in its own process, and the small model that ships with it. Open port 8080 in a
# browser on the machine.
{
  networking.hostName = "demo";
  nixpkgs.hostPlatform = "x86_64-linux";
  system.stateVersion = "26.05";

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

  services.duckpond = {
    enable = true;
    settings.ducks = 4;
    # Nothing here has to answer within microseconds.
    cpus.governor = null;
  };
}
