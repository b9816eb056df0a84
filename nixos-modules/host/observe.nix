# Metrics and logs.
{
  config,
  lib,
  ...
}: let
  cfg = config.services.duckpond;
  tls = cfg.tls.certificate != null;
  target =
    if lib.elem cfg.host ["0.0.0.0" "::"]
    then "localhost"
    else cfg.host;
  journal = lib.filterAttrs (_: value: value != null) {
    MaxRetentionSec = cfg.logs.retention;
    SystemMaxUse = cfg.logs.maxUse;
  };
in {
  config = lib.mkIf cfg.enable {
    services.prometheus.scrapeConfigs = lib.mkIf cfg.prometheus.enable [
      (
        {
          job_name = "duckpond";
          scheme =
            if tls
            then "https"
            else "http";
          static_configs = [
            {
              targets = [
                "${
                  if lib.hasInfix ":" target
                  then "[${target}]"
                  else target
                }:${toString cfg.port}"
              ];
            }
          ];
        }
        // lib.optionalAttrs (cfg.prometheus.keyFile != null) {
          authorization.credentials_file = cfg.prometheus.keyFile;
        }
      )
    ];
    # The key's file is on the machine, not where the configuration is checked.
    services.prometheus.checkConfig = lib.mkIf (cfg.prometheus.enable && cfg.prometheus.keyFile != null) (lib.mkDefault "syntax-only");
    services.journald.extraConfig = lib.mkIf (journal != {}) (
      lib.concatStrings (lib.mapAttrsToList (name: value: "${name}=${value}\n") journal)
    );
  };
}
