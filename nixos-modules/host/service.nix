# The engine as a service, its user, and who can reach it.
{
  config,
  lib,
  pkgs,
  utils,
  ...
}: let
  cfg = config.services.duckpond;
  units = import ../units.nix {inherit lib;};
  ports = cfg.description.ports or [];
  tls = cfg.tls.certificate != null;

  interfaces = import ../interfaces.nix {inherit lib pkgs utils;};
  used = interfaces.of (map (port: port.link) ports);

  # TOML, as far as settings need it: JSON's texts, numbers and lists are TOML's.
  settings = pkgs.writeText "duckpond.toml" (
    lib.concatStrings (lib.mapAttrsToList (name: value: "${name} = ${builtins.toJSON value}\n") cfg.settings)
  );
  arguments =
    [
      "serve"
      "--config"
      "/etc/duckpond/duckpond.toml"
      "--log"
      cfg.logs.level
      "--host"
      cfg.host
      "--port"
      (toString cfg.port)
    ]
    ++ lib.optionals (cfg.description != {}) [
      "--pond"
      "/etc/duckpond/pond.json"
    ]
    ++ lib.optionals (model != null) [
      "--model"
      model
    ]
    ++ lib.optionals (cfg.servedName != null) [
      "--served-name"
      cfg.servedName
    ]
    ++ lib.concatMap (name: [
      "--allow-host"
      name
    ])
    cfg.allowedHosts
    ++ lib.optionals (cfg.apiKeysFile != null) [
      "--api-keys"
      cfg.apiKeysFile
    ]
    ++ lib.optional cfg.allowAnyone "--allow-anyone"
    ++ cfg.extraFlags;
  # systemd's specifier for credentials must not be quoted away.
  credentials = lib.optionalString tls " --tls-certificate %d/tls-certificate --tls-key %d/tls-key";
  model =
    if cfg.model != null
    then toString cfg.model
    else cfg.description.model or null;

  unit = interfaces.service used (units.engine {
    start = "${lib.getExe' cfg.package "duckpond"} ${utils.escapeSystemdExecArgs arguments}${credentials}";
    kill = "${pkgs.coreutils}/bin/kill";
    ports = lib.any (port: !(lib.hasPrefix "udp:" port.link)) ports;
    vfio = cfg.cards != [] || (cfg.description.vfio_ids or cfg.vfio.ids) != [];
    gpu = cfg.gpu.nvidia.enable;
    watchdog = cfg.watchdogSec;
  });
in {
  config = lib.mkIf cfg.enable {
    environment.systemPackages = [cfg.package];
    environment.etc."duckpond/duckpond.toml".source = settings;

    users.users.duckpond = {
      description = "Engine of a pond";
      isSystemUser = true;
      group = "duckpond";
      home = "/var/lib/duckpond";
    };
    users.groups.duckpond = {};

    systemd.services.duckpond = {
      inherit
        (unit)
        description
        unitConfig
        wants
        ;
      wantedBy = ["multi-user.target"];
      after = unit.after ++ lib.optional (cfg.cards != []) "duckpond-vfio.service";
      requires = lib.optional (cfg.cards != []) "duckpond-vfio.service";
      # The description's path stays when its content changes.
      restartTriggers = [settings] ++ lib.optional (cfg.descriptionFile != null) cfg.descriptionFile;
      environment = {
        DUCKPOND_RUNTIME_DIR = "/run/duckpond";
        XDG_CACHE_HOME = "/var/cache/duckpond";
        LD_LIBRARY_PATH =
          if cfg.gpu.nvidia.enable
          then "/run/opengl-driver/lib"
          else null;
      };
      serviceConfig =
        unit.serviceConfig
        // lib.optionalAttrs tls {
          LoadCredential = [
            "tls-certificate:${toString cfg.tls.certificate}"
            "tls-key:${cfg.tls.key}"
          ];
        };
    };

    networking.dhcpcd.denyInterfaces = used;
    systemd.network.networks = interfaces.unmanaged used;
    networking.firewall.allowedTCPPorts = lib.mkIf cfg.openFirewall [cfg.port];
    security.pam.loginLimits =
      map (domain: {
        inherit domain;
        type = "-";
        item = "memlock";
        value = "unlimited";
      })
      cfg.memoryLock.users;
  };
}
