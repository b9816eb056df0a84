# Options of NixOS with their types. Behind each group: the file in nixpkgs, and the commit at which it was read (12 digits).
# nixos-26.05 itself could not be read here: whoever can should compare these, and README.md has a command for it.
{
  config,
  lib,
  pkgs,
  ...
}: let
  inherit (lib) mkEnableOption mkOption types;
  bool = default:
    mkOption {
      type = types.bool;
      inherit default;
    };
  lines = mkOption {
    type = types.lines;
    default = "";
  };
  strings = mkOption {
    type = types.listOf types.str;
    default = [];
  };
  ports = mkOption {
    type = types.listOf types.port;
    default = [];
  };
  nullOr = type:
    mkOption {
      type = types.nullOr type;
      default = null;
    };
  firewallPorts = {
    allowedTCPPorts = ports;
    allowedUDPPorts = ports;
  };
  # nixos/modules/config/sysctl.nix 05924f714f31
  sysctlOption = lib.mkOptionType {
    name = "sysctl option value";
    check = value: lib.isBool value || lib.isString value || lib.isInt value || value == null;
    merge = lib.mergeOneOption;
  };
in {
  options = {
    # nixos/modules/misc/assertions.nix 08062fccc11d
    assertions = mkOption {
      type = types.listOf types.unspecified;
      default = [];
    };
    warnings = strings;

    # nixos/modules/misc/nixpkgs.nix 026ffb9e7abf
    nixpkgs.hostPlatform = mkOption {type = types.either types.str types.attrs;};
    nixpkgs.config = mkOption {
      type = types.attrs;
      default = {};
    };
    nixpkgs.overlays = mkOption {
      type = types.listOf (types.functionTo types.unspecified);
      default = [];
    };
    # nixos/modules/misc/version.nix 03a362fe87d4
    system.stateVersion = mkOption {type = types.str;};

    # nixos/modules/system/boot/kernel.nix 045d702e8af1; the type is stricter in later versions, as it is here
    boot.kernelParams = mkOption {
      type = types.listOf (types.strMatching ''([^"[:space:]]|"[^"]*")+'');
      default = [];
    };
    boot.kernelModules = strings;
    boot.initrd.kernelModules = strings;
    boot.initrd.availableKernelModules = strings;
    # nixos/modules/system/boot/modprobe.nix 0c889da42f24
    boot.blacklistedKernelModules = strings;
    boot.extraModprobeConfig = lines;
    # nixos/modules/config/sysctl.nix 05924f714f31
    boot.kernel.sysctl = mkOption {
      type = types.attrsOf sysctlOption;
      default = {};
    };
    # nixos/modules/system/boot/loader/systemd-boot/systemd-boot.nix 01e499cec163
    boot.loader.systemd-boot.enable = bool false;
    boot.loader.systemd-boot.configurationLimit = nullOr types.int;
    # nixos/modules/system/boot/loader/efi.nix 0e1f31068d12
    boot.loader.efi.canTouchEfiVariables = bool false;

    # nixos/modules/tasks/filesystems.nix 0148e16d1446; neededForBoot: nixos/modules/system/boot/stage-1.nix
    fileSystems = mkOption {
      default = {};
      type = types.attrsOf (
        types.submodule (
          {name, ...}: {
            options = {
              mountPoint = mkOption {
                type = types.str;
                default = name;
              };
              device = nullOr types.str;
              label = nullOr types.str;
              fsType = mkOption {
                type = types.str;
                default = "auto";
              };
              neededForBoot = bool false;
              options = mkOption {
                type = types.nonEmptyListOf types.str;
                default = ["defaults"];
              };
            };
          }
        )
      );
    };

    # nixos/modules/tasks/network-interfaces.nix 003a3fd2f05c; useNetworkd: nixos/modules/tasks/network-interfaces.nix, not read
    networking.hostName = mkOption {
      type = types.strMatching "^$|^[[:alnum:]]([[:alnum:]_-]{0,61}[[:alnum:]])?$";
    };
    networking.useNetworkd = bool false;
    networking.useDHCP = bool true;
    # nixos/modules/services/networking/dhcpcd.nix 0232f83ef279
    networking.dhcpcd.denyInterfaces = mkOption {
      type = types.listOf types.str;
      default = [];
    };
    # nixos/modules/services/networking/firewall.nix 0192bb844360
    networking.firewall =
      {
        enable = bool true;
        interfaces = mkOption {
          type = types.attrsOf (types.submodule {options = firewallPorts;});
          default = {};
        };
      }
      // firewallPorts;
    # nixos/modules/system/boot/networkd.nix 00976b194fe3
    systemd.network.networks = mkOption {
      default = {};
      type = types.attrsOf (
        types.submodule {
          options = {
            enable = bool true;
            matchConfig = mkOption {
              type = types.attrsOf types.unspecified;
              default = {};
            };
            networkConfig = mkOption {
              type = types.attrsOf types.unspecified;
              default = {};
            };
            linkConfig = mkOption {
              type = types.attrsOf types.unspecified;
              default = {};
            };
            DHCP = nullOr types.str;
            address = strings;
          };
        }
      );
    };
    # nixos/modules/services/networking/ssh/sshd.nix 00976b194fe3
    services.openssh.enable = bool false;

    # nixos/modules/system/etc/etc.nix 05924f714f31
    environment.etc = mkOption {
      default = {};
      type = types.attrsOf (
        types.submodule (
          {
            name,
            config,
            ...
          }: {
            options = {
              enable = bool true;
              target = mkOption {
                type = types.str;
                default = name;
              };
              text = nullOr types.lines;
              source = mkOption {type = types.path;};
              mode = mkOption {
                type = types.str;
                default = "symlink";
              };
            };
            config.source = lib.mkIf (config.text != null) (
              lib.mkDefault (pkgs.writeText ("etc-" + baseNameOf name) config.text)
            );
          }
        )
      );
    };
    # nixos/modules/config/system-path.nix 0354e8b747c8
    environment.systemPackages = mkOption {
      type = types.listOf types.package;
      default = [];
    };
    # nixos/modules/config/shells-environment.nix 023d7ae5e2d9
    environment.variables = mkOption {
      type = types.attrsOf (types.either types.str (types.listOf types.str));
      default = {};
    };

    # nixos/modules/config/users-groups.nix 005ab72f9cf5
    users.users = mkOption {
      default = {};
      type = types.attrsOf (
        types.submodule (
          {name, ...}: {
            options = {
              name = mkOption {
                type = types.str;
                default = name;
              };
              description = mkOption {
                type = types.str;
                default = "";
              };
              isSystemUser = bool false;
              isNormalUser = bool false;
              group = mkOption {
                type = types.str;
                default = "";
              };
              extraGroups = strings;
              home = mkOption {
                type = types.path;
                default = "/var/empty";
              };
            };
          }
        )
      );
    };
    users.groups = mkOption {
      default = {};
      type = types.attrsOf (
        types.submodule {
          options = {
            gid = nullOr types.int;
            members = strings;
          };
        }
      );
    };
    # nixos/modules/security/pam.nix: the types as found by their text (limitsType, security.pam.loginLimits)
    security.pam.loginLimits = mkOption {
      default = [];
      type = types.listOf (
        types.submodule {
          options = {
            domain = mkOption {type = types.str;};
            type = mkOption {
              type = types.enum [
                "-"
                "hard"
                "soft"
              ];
              default = "-";
            };
            item = mkOption {
              type = types.enum [
                "core"
                "data"
                "fsize"
                "memlock"
                "nofile"
                "rss"
                "stack"
                "cpu"
                "nproc"
                "as"
                "maxlogins"
                "maxsyslogins"
                "priority"
                "locks"
                "sigpending"
                "msgqueue"
                "nice"
                "rtprio"
              ];
            };
            value = mkOption {type = types.oneOf [types.str types.int];};
          };
        }
      );
    };

    # nixos/modules/services/hardware/udev.nix 01f19f54e046
    services.udev.extraRules = lines;
    hardware.firmware = mkOption {
      type = types.listOf types.package;
      default = [];
    };
    # nixos/modules/hardware/all-firmware.nix 05924f714f31
    hardware.enableRedistributableFirmware = bool false;
    # nixos/modules/hardware/cpu/intel-microcode.nix 14fd976016ae
    hardware.cpu.intel.updateMicrocode = bool false;
    # nixos/modules/tasks/cpu-freq.nix 02b85944b4f8
    powerManagement.cpuFreqGovernor = nullOr types.str;
    # nixos/modules/hardware/graphics.nix 0009474fe6d7
    hardware.graphics.enable = bool false;
    # nixos/modules/hardware/video/nvidia.nix: modesetting 026b6010efb3; nvidiaPersistenced and open as found by their text in later versions
    hardware.nvidia.modesetting.enable = bool false;
    hardware.nvidia.nvidiaPersistenced = bool false;
    hardware.nvidia.open = nullOr types.bool;
    # nixos/modules/services/x11/xserver.nix, not read: a list of names of drivers
    services.xserver.videoDrivers = strings;

    # nixos/modules/system/boot/systemd/journald.nix 0145c6da2896
    services.journald.extraConfig = lines;
    # nixos/modules/services/monitoring/prometheus/default.nix 020e024506ab; authorization as found by its text in a later version
    services.prometheus.enable = mkEnableOption "Prometheus";
    services.prometheus.checkConfig = mkOption {
      type = types.either types.bool (types.enum ["syntax-only"]);
      default = true;
    };
    services.prometheus.scrapeConfigs = mkOption {
      default = [];
      type = types.listOf (
        types.submodule {
          options = {
            job_name = mkOption {type = types.str;};
            scheme = nullOr (types.enum ["http" "https"]);
            metrics_path = nullOr types.str;
            authorization = nullOr (
              types.submodule {
                options = {
                  type = nullOr types.str;
                  credentials = nullOr types.str;
                  credentials_file = nullOr types.str;
                };
              }
            );
            tls_config = nullOr (
              types.submodule {
                options = {
                  ca_file = nullOr types.str;
                  server_name = nullOr types.str;
                  insecure_skip_verify = nullOr types.bool;
                };
              }
            );
            static_configs = mkOption {
              default = [];
              type = types.listOf (
                types.submodule {
                  options = {
                    targets = strings;
                    labels = mkOption {
                      type = types.attrsOf types.str;
                      default = {};
                    };
                  };
                }
              );
            };
          };
        }
      );
    };

    # nixos/modules/system/boot/systemd/tmpfiles.nix 046599161540
    systemd.tmpfiles.rules = strings;
    systemd.tmpfiles.settings = mkOption {
      default = {};
      type = types.attrsOf (
        types.attrsOf (
          types.attrsOf (
            types.submodule (
              {name, ...}: {
                options =
                  lib.mapAttrs (
                    _: default:
                      mkOption {
                        type = types.str;
                        inherit default;
                      }
                  ) {
                    type = name;
                    mode = "-";
                    user = "-";
                    group = "-";
                    age = "-";
                    argument = "";
                  };
              }
            )
          )
        )
      );
    };

    # nixos/modules/system/activation/activation-script.nix 04da25cd20da: texts, or sets of text and deps
    system.activationScripts = mkOption {
      type = types.attrsOf types.unspecified;
      default = {};
    };
    system.build = mkOption {
      type = types.lazyAttrsOf types.unspecified;
      default = {};
    };
  };
}
