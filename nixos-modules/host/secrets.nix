# Secrets: encrypted by age in the repository, decrypted when the system is activated, in memory and for the engine's user alone.
# Where agenix' module is there (`age.secrets`), it does this; else a few lines here do the same, without its generations.
{
  config,
  lib,
  options,
  pkgs,
  ...
}: let
  cfg = config.services.duckpond;
  agenix = options ? age;
  place =
    if agenix
    then "/run/agenix"
    else "/run/duckpond-secrets";
  encrypted = lib.filterAttrs (_: file: file != null) {
    duckpond-key = cfg.secrets.key;
    duckpond-api-keys = cfg.secrets.apiKeys;
  };
  identities = lib.concatMapStringsSep " " (file: "-i ${lib.escapeShellArg file}") cfg.secrets.identityFiles;
  decrypt = name: file: ''
    if ${pkgs.age}/bin/age --decrypt ${identities} -o ${place}/.${name} ${file}; then
      chown duckpond:duckpond ${place}/.${name}
      chmod 0400 ${place}/.${name}
      mv -f ${place}/.${name} ${place}/${name}
    else
      echo "duckpond: ${name} cannot be decrypted by ${toString cfg.secrets.identityFiles}; encrypt it again for this host (secrets/README.md)" >&2
      _localstatus=1
    fi
  '';
in {
  config = lib.mkIf cfg.enable (
    lib.mkMerge [
      {
        services.duckpond.keyFile = lib.mkIf (cfg.secrets.key != null) "${place}/duckpond-key";
        services.duckpond.apiKeysFile = lib.mkIf (cfg.secrets.apiKeys != null) "${place}/duckpond-api-keys";
      }
      (lib.mkIf (encrypted != {} && !agenix) {
        system.activationScripts.duckpond-secrets = {
          deps = [
            "users"
            "groups"
            "specialfs"
          ];
          text = ''
            mkdir -p ${place}
            ${pkgs.util-linux}/bin/mountpoint -q ${place} || ${pkgs.util-linux}/bin/mount -t ramfs -o nodev,nosuid,noexec,mode=0751 ramfs ${place}
            umask 0077
            ${lib.concatStrings (lib.mapAttrsToList decrypt encrypted)}
            umask 0022
          '';
        };
      })
      (lib.optionalAttrs agenix {
        age.secrets =
          lib.mapAttrs (_: file: {
            inherit file;
            owner = "duckpond";
            group = "duckpond";
            mode = "0400";
          })
          encrypted;
      })
    ]
  );
}
