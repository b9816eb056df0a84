# Interfaces of links that stay with the kernel, for engine and ducks alike: a service waits for them and brings them up, and nobody asks for an address
# there, since they need none.
{
  lib,
  pkgs,
  utils,
}: let
  device = name: "sys-subsystem-net-devices-${utils.escapeSystemdPath name}.device";
in {
  # Those that links name.
  of = links: map (lib.removePrefix "eth:") (lib.filter (lib.hasPrefix "eth:") links);

  # A service's definition (units.nix) with what it needs of its interfaces.
  service = names: unit:
    unit
    // {
      wants = (unit.wants or []) ++ map device names;
      after = unit.after ++ map device names;
      serviceConfig =
        unit.serviceConfig
        // lib.optionalAttrs (names != []) {
          ExecStartPre = map (name: "+${lib.getExe' pkgs.iproute2 "ip"} link set dev ${lib.escapeShellArg name} up") names;
        };
    };

  # For systemd.network.networks: networkd leaves them alone.
  unmanaged = names:
    lib.listToAttrs (map (name:
      lib.nameValuePair "05-duckpond-${name}" {
        matchConfig.Name = name;
        linkConfig.Unmanaged = true;
      })
    names);
}
