# Ducks that keep Linux: one service for each instance, normally one a machine.
{
  config,
  lib,
  pkgs,
  utils,
  ...
}: let
  inherit
    (lib)
    literalExpression
    mkEnableOption
    mkOption
    types
    ;
  cfg = config.services.duckd;
  units = import ../units.nix {inherit lib;};

  instance = types.submodule {
    options = {
      link = mkOption {
        type = types.strMatching "(eth|udp):[!-~]+";
        example = "eth:enp1s0";
        description = "Where the host is: `eth:INTERFACE`, or `udp:ADDRESS:PORT`.";
      };
      id = mkOption {
        type = types.nullOr (types.strMatching "[A-Za-z0-9._-]{1,16}");
        default = null;
        example = "duck-01";
        description = "What it is called; without it, the hardware address of its port.";
      };
      memory = mkOption {
        type = types.nullOr (types.strMatching "[0-9]+([KMGT]i?B?)?");
        default = null;
        example = "28G";
        description = "Memory for weights; without it, what is available but for a reserve.";
      };
      cores = mkOption {
        type = types.nullOr types.ints.positive;
        default = null;
        description = "Threads that compute; without it, one for each processor.";
      };
      pin = mkOption {
        type = types.nullOr (types.strMatching "[0-9,-]+");
        default = null;
        example = "0-3";
        description = "Processors that these are pinned to.";
      };
      hugePages = mkOption {
        type = types.enum [
          "auto"
          "require"
          "off"
        ];
        default = "auto";
        description = "Whether weights lie on large pages.";
      };
      extraFlags = mkOption {
        type = types.listOf types.str;
        default = [];
        description = "Further arguments of `duckd`.";
      };
    };
  };

  arguments = duck:
    [
      "--link"
      duck.link
      "--key"
      cfg.publicKey
      "--huge-pages"
      duck.hugePages
    ]
    ++ lib.concatMap
    (
      flag:
        lib.optionals (flag.value != null) [
          flag.name
          (toString flag.value)
        ]
    )
    [
      {
        name = "--id";
        value = duck.id;
      }
      {
        name = "--memory";
        value = duck.memory;
      }
      {
        name = "--cores";
        value = duck.cores;
      }
      {
        name = "--pin";
        value = duck.pin;
      }
    ]
    ++ duck.extraFlags;

  interfaces = import ../interfaces.nix {inherit lib pkgs utils;};
  used = interfaces.of (map (duck: duck.link) (lib.attrValues cfg.instances));
  service = duck:
    interfaces.service (interfaces.of [duck.link]) (
      units.duck {start = "${lib.getExe' cfg.package "duckd"} ${utils.escapeSystemdExecArgs (arguments duck)}";}
    )
    // {
      wantedBy = ["multi-user.target"];
    };
  size =
    {
      "2MiB" = "2M";
      "1GiB" = "1G";
    }
    .${cfg.reservePages.size};
in {
  options.services.duckd = {
    enable = mkEnableOption "ducks of a pond on this machine, which goes on running Linux";

    package = mkOption {
      type = types.package;
      defaultText = literalExpression "duckd of this flake";
      description = "The package that has `bin/duckd`.";
    };

    publicKey = mkOption {
      type = types.strMatching "[0-9a-f]{64}";
      description = "The pond's public key, as `duckpond key public` prints it. It is no secret: a duck obeys whoever has the other half.";
    };

    instances = mkOption {
      type = types.attrsOf instance;
      example = literalExpression ''{ main.link = "eth:enp1s0"; }'';
      description = "The ducks of this machine by name; a mini PC has one.";
    };

    reservePages = {
      size = mkOption {
        type = types.enum [
          "2MiB"
          "1GiB"
        ];
        default = "1GiB";
        description = "Size of the pages that the kernel sets aside.";
      };
      count = mkOption {
        type = types.nullOr types.ints.positive;
        default = null;
        example = 28;
        description = "How many pages the kernel sets aside at boot; without it none, and transparent ones are asked for.";
      };
    };

    governor = mkOption {
      type = types.nullOr types.str;
      default = "performance";
      description = "Governor of the processors' frequency; null leaves it alone.";
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = cfg.instances != {};
        message = "${config.networking.hostName}: services.duckd.instances: there is none; say where the host is, as in instances.main.link = \"eth:enp1s0\".";
      }
    ];
    systemd.services =
      lib.mapAttrs' (
        name: duck:
          lib.nameValuePair (
            if name == "main"
            then "duckd"
            else "duckd-${name}"
          ) (service duck)
      )
      cfg.instances;
    networking.dhcpcd.denyInterfaces = used;
    systemd.network.networks = interfaces.unmanaged used;
    boot.kernelParams = lib.optionals (cfg.reservePages.count != null) [
      "default_hugepagesz=${size}"
      "hugepagesz=${size}"
      "hugepages=${toString cfg.reservePages.count}"
    ];
    powerManagement.cpuFreqGovernor = lib.mkIf (cfg.governor != null) (lib.mkDefault cfg.governor);
  };
}
