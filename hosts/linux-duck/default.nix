# A mini PC that keeps Linux, without a disk of its own: it boots over the network and runs duckd. One image serves any number of them, since a duck
# without a name is known by its hardware address.
{lib, ...}: let
  # Your pond's; hosts/pigeon has it once secrets/pigeon/pond.pub is there. This one is the test pond's, whose secret everybody knows.
  pigeon = ../../secrets/pigeon/pond.pub;
  test = ../../secrets/vm/pond.pub;
  publicKey = lib.removeSuffix "\n" (builtins.readFile (
    if builtins.pathExists pigeon
    then pigeon
    else test
  ));
in {
  imports = [../../nixos-modules/duck/netboot.nix];

  warnings = lib.optional (!builtins.pathExists pigeon) ''
    linux-duck: services.duckd.publicKey is the test pond's, whose secret key is in the repository: anybody on the segment can command this
    duck; put your pond's key into secrets/pigeon/pond.pub'';

  networking.hostName = "linux-duck";
  nixpkgs.hostPlatform = "x86_64-linux";
  system.stateVersion = "26.05";
  hardware.enableRedistributableFirmware = true;
  # The port to the pond needs no address.
  networking.useDHCP = false;

  services.duckd = {
    enable = true;
    inherit publicKey;
    instances.main = {
      link = "eth:enp1s0";
      cores = 4;
      pin = "0-3";
    };
    # Of an N100's 32 GiB, all but what Linux and this system in memory need.
    reservePages.count = 26;
  };
}
