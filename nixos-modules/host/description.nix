# From options to the one description that engine, boot service and tests read: checked here by ../pond.nix, read again by the engine with the
# same rules, and written to /etc/duckpond/pond.json.
{
  config,
  lib,
  pkgs,
  ...
}: let
  cfg = config.services.duckpond;
  pond = import ../pond.nix;
  state = "/var/lib/duckpond";

  # Ducks of every port, numbered on from one port to the next.
  generated =
    (
      lib.foldl
      (
        {
          start,
          ducks,
        }: port: let
          one =
            if port.subnet == null
            then throw "services.duckpond.ports: port ${port.name} has no subnet to give its ${toString port.ducks.count} ducks addresses; set its subnet, or list services.duckpond.ducks"
            else
              pond.ducks {
                port = port.name;
                inherit (port) subnet;
                inherit start;
                inherit (port.ducks) count first macs;
              };
        in {
          start = start + port.ducks.count;
          ducks = ducks ++ lib.optionals (port.ducks.count > 0) one;
        }
      )
      {
        start = 1;
        ducks = [];
      }
      cfg.ports
    )
    .ducks;

  isolated = lib.sort lib.lessThan (cfg.cpus.isolated ++ cfg.cpus.siblings);
  given =
    if cfg.pond != null
    then cfg.pond
    else {
      inherit (cfg) name;
      isolated =
        if isolated == []
        then null
        else isolated;
      vfio_ids =
        if cfg.vfio.ids == []
        then null
        else cfg.vfio.ids;
      huge_pages =
        if cfg.hugePages.size == null && cfg.hugePages.count == null
        then null
        else {inherit (cfg.hugePages) size count mount;};
      ports = map (port: removeAttrs port ["ducks"]) cfg.ports;
      ducks =
        if cfg.ducks != []
        then cfg.ducks
        else generated;
    };
  or' = value: field:
    if value != null
    then value
    else given.${field} or null;

  # With everything but where boot images lie, since they are made of it, and digests, since those are known once files are built.
  bare =
    given
    // {
      model = or' (
        if cfg.model == null
        then null
        else toString cfg.model
      ) "model";
      key = or' cfg.keyFile "key";
      public_key = or' cfg.publicKey "public_key";
      kernels =
        if cfg.firmware.package == null
        then null
        else given.kernels or "${state}/kernels/fp9_kernels.elf";
      kernels_hash = null;
      nest_hash = null;
      netboot = null;
    };

  # Stand in until the files are built: forms of digests, so that the rules hold, which no file has.
  unknown = {
    kernels = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    nest = "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE=";
  };
  withFirmware = lib.optionalAttrs (cfg.firmware.package != null) {
    kernels_hash = unknown.kernels;
    nest_hash = unknown.nest;
  };
  file = name: description:
    if cfg.firmware.package == null
    then pkgs.writeText name (pond.pretty description)
    else
      pkgs.runCommand name
      {
        text = pond.pretty description;
        passAsFile = ["text"];
        firmware = "${cfg.firmware.package}/share/duckpond";
      }
      ''
        . ${../../nix/packages/nar-hash.sh}
        sed -e "s|${unknown.kernels}|$(nar_hash $firmware/fp9_kernels.elf)|" \
          -e "s|${unknown.nest}|$(nar_hash $firmware/nest.elf)|" "$textPath" > $out
      '';
  exists = cfg.enable && (cfg.pond != null || cfg.ports != []);
in {
  config = {
    services.duckpond = {
      description =
        if exists
        then
          pond.make (
            bare
            // withFirmware
            // {
              netboot =
                if cfg.firmware.images != null
                then "${state}/netboot"
                else given.netboot or null;
            }
          )
        else {};
      descriptionFile =
        if exists
        then file "pond.json" cfg.description
        else null;
      firmware.images = lib.mkDefault (
        if exists && cfg.firmware.package != null && (bare.public_key or null) != null
        then
          pkgs.callPackage ../../nix/packages/netboot.nix {
            duckpond = cfg.package;
            duck-firmware = cfg.firmware.package;
            description = file "pond-without-images.json" (pond.make (bare // withFirmware));
            inherit (bare) name;
          }
        else null
      );
    };
    environment.etc = lib.mkIf exists {"duckpond/pond.json".source = cfg.descriptionFile;};
  };
}
