# The Debian package's units, of the same definitions as NixOS's (nixos-modules/units.nix) with Debian's paths. The files beside this one are what it
# gives, byte for byte; scripts/test-nix compares, and `scripts/package-deb --units` writes them anew.
{
  lib,
  runCommand,
  writeText,
}: let
  units = import ../../nixos-modules/units.nix {inherit lib;};
  show = value:
    if value == true
    then "yes"
    else if value == false
    then "no"
    else toString value;
  # Lists of words that may stand on one line do; others are lines of their own.
  joined = [
    "AmbientCapabilities"
    "CapabilityBoundingSet"
    "RestrictAddressFamilies"
  ];
  lines = values:
    lib.concatStrings (
      lib.concatLists (
        lib.mapAttrsToList (
          name: value:
            map (one: "${name}=${show one}\n") (
              if !(lib.isList value)
              then [value]
              else if lib.elem name joined
              then [(lib.concatStringsSep " " value)]
              else value
            )
        )
        values
      )
    );
  unit = {
    description,
    wants ? [],
    requires ? [],
    after ? [],
    before ? [],
    unitConfig ? {},
    serviceConfig,
  }: let
    list = name: values: lib.optionalAttrs (values != []) {${name} = lib.concatStringsSep " " values;};
  in ''
    # Made from nixos-modules/units.nix; changes belong there. What differs on one machine goes into a drop-in: systemctl edit.
    [Unit]
    ${lines (
      {Description = description;}
      // list "Wants" wants
      // list "Requires" requires
      // list "After" after
      // list "Before" before
      // unitConfig
    )}
    [Service]
    ${lines serviceConfig}
    [Install]
    WantedBy=multi-user.target
  '';
  with' = definition: settings: definition // {serviceConfig = definition.serviceConfig // settings;};

  # Which of these a machine uses is not known when the package is made, so the engine may use ports, vfio-pci and NVIDIA's card where they are;
  # without the capabilities of ports it could not serve any.
  engine = units.engine {
    start = "/usr/bin/duckpond serve $DUCKPOND_OPTIONS";
    kill = "/bin/kill";
    ports = true;
    vfio = true;
    gpu = true;
    watchdog = 60;
  };
  files = {
    "duckpond.service" = unit (
      with' (engine // {after = engine.after ++ ["duckpond-vfio.service"];}) {
        EnvironmentFile = "-/etc/default/duckpond";
        Environment = [
          "DUCKPOND_RUNTIME_DIR=/run/duckpond"
          "XDG_CACHE_HOME=/var/cache/duckpond"
        ];
      }
    );
    "duckpond-vfio.service" = let
      vfio = units.vfio {
        start = "/usr/libexec/duckpond/vfio-bind bind $DUCKPOND_VFIO";
        stop = "/usr/libexec/duckpond/vfio-bind release $DUCKPOND_VFIO";
      };
    in
      unit (
        with' vfio {EnvironmentFile = "-/etc/default/duckpond-vfio";}
        // {
          # Not on machines whose cards all stay with the kernel.
          unitConfig =
            vfio.unitConfig
            // {
              ConditionPathExists = "/etc/default/duckpond-vfio";
            };
        }
      );
    "duckd@.service" = unit (
      with' (units.duck {start = "/usr/bin/duckd $DUCKD_OPTIONS";}) {
        EnvironmentFile = "/etc/default/duckd-%i";
      }
    );
    "60-duckpond.rules" = ''
      # The group of a card's functions, for the engine.
      SUBSYSTEM=="vfio", GROUP="duckpond", MODE="0660"
    '';
  };
in
  runCommand "duckpond-deb-units" {} ''
    mkdir $out
    ${lib.concatStrings (
      lib.mapAttrsToList (name: text: "cp ${writeText (lib.replaceStrings ["@"] ["-"] name) text} \"$out/${name}\"\n") files
    )}
  ''
