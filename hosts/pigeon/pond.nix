# The reference appliance: a host with one four-port 25 GbE card, and four switches, or four VLANs of one, with eight mini PCs each.
#
# pond.json beside this file is what it makes, for those without Nix:
#   nix-instantiate --eval --strict --json --expr 'with import ./nixos-modules/pond.nix; pretty (import ./hosts/pigeon/pond.nix)' | jq -j .
let
  pond = import ../../nixos-modules/pond.nix;

  # In the order of the card's functions.
  lcores = [4 6 8 2];

  port = i: {
    name = "port${toString i}";
    link = "dpdk:0000:01:00.${toString i}";
    lcore = builtins.elemAt lcores i;
    subnet = "10.21.${toString (i + 1)}.0/24";
  };
  ports = builtins.genList port 4;

  # For each port the hardware addresses that `duckpond ducks adopt` finds, eight of them; null: from the documentation range, which no card has.
  macs = [null null null null];
  ducks = i: port:
    pond.ducks {
      inherit (port) subnet;
      port = port.name;
      start = 8 * i + 1;
      macs = builtins.elemAt macs i;
    };
in
  pond.make {
    name = "pigeon";
    model = "/var/lib/duckpond/model";
    key = "/var/lib/duckpond/pond.key";
    kernels = "/var/lib/duckpond/kernels/fp9_kernels.elf";
    netboot = "/var/lib/duckpond/netboot";
    # The ports' processors and the second threads of their cores, as Linux numbers an i9-13900K (`lscpu -e` tells).
    isolated = [2 3 4 5 6 7 8 9];
    # The ports' frame buffers need one; the other is room.
    huge_pages = {
      size = "1GiB";
      count = 2;
      mount = "/dev/hugepages1G";
    };
    inherit ports;
    ducks = builtins.concatLists (builtins.genList (i: ducks i (builtins.elemAt ports i)) (builtins.length ports));
  }
