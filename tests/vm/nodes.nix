# Machines that the tests share.
{
  lib,
  modules,
  packages,
}: rec {
  publicKey = lib.removeSuffix "\n" (builtins.readFile ../../secrets/vm/pond.pub);
  api = "http://127.0.0.1:8080";

  # A host with so many ports: vlan 1 is its first, on eth1.
  host = {
    vlans,
    ducks,
    firmware,
  }: {pkgs, ...}: {
    imports = [modules.host];
    virtualisation.vlans = vlans;
    virtualisation.memorySize = 4096;
    virtualisation.cores = 4;
    networking.useDHCP = false;
    environment.systemPackages = [pkgs.curl pkgs.jq];
    services.duckpond = {
      enable = true;
      name = "test";
      ports =
        map (n: {
          name = "port${toString n}";
          link = "eth:eth${toString n}";
          subnet = "10.21.${toString n}.0/24";
        })
        vlans;
      inherit ducks publicKey;
      firmware.package =
        if firmware
        then packages.duck-firmware
        else null;
      secrets = {
        key = ../../secrets/vm/pond-key.age;
        # In the store, which is no place for a key that is not a test's.
        identityFiles = ["${./keys/identity.txt}"];
      };
      cpus.governor = null;
    };
  };

  # A duck that runs the firmware. The driver's machines are NixOS machines, so this one is an emulator within a node, on the node's port.
  bare = {
    vlan,
    mac,
  }: {pkgs, ...}: {
    virtualisation.vlans = [vlan];
    virtualisation.memorySize = 3072;
    virtualisation.cores = 2;
    networking.useDHCP = false;
    environment.systemPackages = [pkgs.qemu];
    systemd.services.duck = {
      description = "A machine that boots over eth1";
      wantedBy = ["multi-user.target"];
      after = ["network.target"];
      path = [pkgs.iproute2];
      script = ''
        ip link add link eth1 name duck0 type macvtap mode passthru
        ip link set duck0 address ${mac} up
        index=$(cat /sys/class/net/duck0/ifindex)
        exec ${pkgs.qemu}/bin/qemu-system-x86_64 -M q35 -cpu max -smp 2 -m 1536 -nographic -no-reboot \
          -netdev tap,id=n,fd=3 -device virtio-net-pci,netdev=n,mac=${mac} -boot n 3<> /dev/tap$index
      '';
      serviceConfig.Restart = "always";
    };
  };

  # A duck that keeps Linux.
  linux = {
    vlan,
    name,
  }: {
    imports = [modules.duck];
    virtualisation.vlans = [vlan];
    virtualisation.memorySize = 1024;
    virtualisation.cores = 2;
    networking.useDHCP = false;
    services.duckd = {
      enable = true;
      inherit publicKey;
      governor = null;
      instances.main = {
        link = "eth:eth1";
        id = name;
        memory = "256M";
      };
    };
  };
}
