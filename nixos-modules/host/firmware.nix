# What the host gives ducks without an operating system: the kernels' program, signed here and now with the pond's key, and boot images. The
# signature depends on a secret, so it is made when the system is activated, never in a build.
{
  config,
  lib,
  options,
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
        install -d -m 0755 ${dirOf kernels}
        install -m 0644 ${cfg.firmware.package}/share/duckpond/fp9_kernels.elf ${kernels}
        if [ -e ${key} ]; then
          ${lib.getExe' cfg.package "duckpond"} sign ${kernels} --key ${key} > /dev/null || _localstatus=1
        else
          echo "duckpond: ${key} is not there yet, so the kernels are not signed; make it by 'duckpond key new ${key}', then activate again" >&2
        fi
        ${lib.optionalString (images != null && netboot != null) "ln -sfn ${images} ${netboot}"}
      '';
    };
  };
}
