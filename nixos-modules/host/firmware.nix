# What the host gives ducks without an operating system: the kernels' program, signed here and now with the pond's key, and boot images. The
# signature depends on a secret, so it is made when the system is activated, never in a build.
{
  config,
  lib,
  options,
  pkgs,
  ...
}: let
  cfg = config.services.duckpond;
  kernels = cfg.description.kernels or null;
  key = cfg.description.key or null;
  images = cfg.firmware.images;
  netboot = cfg.description.netboot or null;
  afterSecrets =
    if options ? age && config.age.secrets != {}
    then "agenix"
    else if cfg.secrets.key != null
    then "duckpond-secrets"
    else "users";
in {
  config = lib.mkIf (cfg.enable && kernels != null && cfg.firmware.package != null) {
    system.activationScripts.duckpond-firmware = {
      deps = [
        "users"
        "groups"
        "specialfs"
        afterSecrets
      ];
      text = ''
        install -d -m 0750 -o duckpond -g duckpond /var/lib/duckpond
        # The folder is the engine's user's: what is done in it is done as that user, so that no link there leads root elsewhere.
        as_engine() { ${pkgs.util-linux}/bin/setpriv --reuid duckpond --regid duckpond --clear-groups "$@" || _localstatus=1; }
        as_engine ${pkgs.coreutils}/bin/install -d -m 0755 ${lib.escapeShellArg (dirOf kernels)}
        as_engine ${pkgs.coreutils}/bin/install -m 0644 ${cfg.firmware.package}/share/duckpond/fp9_kernels.elf ${lib.escapeShellArg kernels}
        if [ -e ${lib.escapeShellArg key} ]; then
          as_engine ${lib.getExe' cfg.package "duckpond"} sign ${lib.escapeShellArg kernels} --key ${lib.escapeShellArg key} > /dev/null
        else
          echo "duckpond: ${key} is not there yet, so the kernels are not signed; make it by 'duckpond key new ${key} && chown duckpond: ${key}', then activate again" >&2
        fi
        ${lib.optionalString (images != null && netboot != null) "as_engine ${pkgs.coreutils}/bin/ln -sfn ${images} ${lib.escapeShellArg netboot}"}
      '';
    };
  };
}
