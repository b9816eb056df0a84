# What the test with a Debian machine boots (a virtual one, emulated, on which this configuration's files are laid over Debian's): kernel command
# line, units, activation, all as for a real host. The machine it expects:
#
#   QEMU q35 with an IOMMU, 4 processors, 6 GiB
#   00:05.0  e1000e   bound to vfio-pci, by this address
#   00:06.0  e1000e   the same kind of card, stays with the kernel as enp0s6: 10.21.1.0/24; a duck of hardware address 52:54:00:00:00:d1 boots
#                     behind it
#
# The duck is a machine without a disk that gets nest over the network, and the model is Duckling.
{lib, ...}: {
  networking.hostName = "vm";
  nixpkgs.hostPlatform = "x86_64-linux";
  system.stateVersion = "26.05";
  fileSystems."/" = {
    device = "/dev/vda";
    fsType = "ext4";
  };

  services.duckpond = {
    enable = true;
    name = "vm";
    ports = [
      {
        name = "ducks";
        link = "eth:enp0s6";
        subnet = "10.21.1.0/24";
        lcore = 2;
      }
    ];
    ducks = [
      {
        name = "duck-01";
        port = "ducks";
        mac = "52:54:00:00:00:d1";
        address = "10.21.1.11";
      }
    ];
    cpus.isolated = [
      2
      3
    ];
    # Nothing there has a frequency.
    cpus.governor = null;
    hugePages = {
      size = "1GiB";
      count = 2;
    };
    iommu = "intel";
    vfio.functions = ["0000:00:05.0"];

    publicKey = lib.removeSuffix "\n" (builtins.readFile ../../../secrets/vm/pond.pub);
    secrets = {
      key = ../../../secrets/vm/pond-key.age;
      apiKeys = ../../../secrets/vm/api-keys.age;
      # The test puts tests/vm/keys/identity.txt there.
      identityFiles = ["/etc/duckpond-test/identity.txt"];
    };
    watchdogSec = 30;
    # Emulated processors are slow.
    extraFlags = [
      "--threads"
      "2"
    ];
  };
}
