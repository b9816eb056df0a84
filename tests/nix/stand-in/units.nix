# systemd.services and systemd.mounts with their types, and their texts as NixOS writes them.
#   options: nixos/lib/systemd-unit-options.nix 01f31c2ee7d0; nixos/modules/system/boot/systemd.nix 0017a06717bb
#   texts:   nixos/lib/systemd-lib.nix 013635633ffe; nixos/modules/system/boot/systemd.nix 0017a06717bb (serviceToUnit, default path)
{
  config,
  lib,
  pkgs,
  ...
}: let
  inherit (lib) mkOption types;
  strings = mkOption {
    type = types.listOf unitName;
    default = [];
  };
  text = mkOption {
    type = types.lines;
    default = "";
  };
  unitName = types.strMatching "[a-zA-Z0-9@%:_.\\-]+[.](service|socket|device|mount|automount|swap|target|path|timer|scope|slice)";
  unitOption = lib.mkOptionType {
    name = "systemd option";
    merge = loc: defs: let
      defs' = lib.filterOverrides defs;
    in
      if lib.isList (lib.head defs').value
      then
        lib.concatMap (
          def:
            if lib.isList def.value
            then def.value
            else throw "for the option ${lib.showOption loc} the definitions are a mix of list and non-list"
        )
        defs'
      else lib.mergeEqualOption loc defs';
  };
  sections = mkOption {
    type = types.attrsOf unitOption;
    default = {};
  };
  common = {
    enable = mkOption {
      type = types.bool;
      default = true;
    };
    description = mkOption {
      type = types.singleLineStr;
      default = "";
    };
    documentation = mkOption {
      type = types.listOf types.str;
      default = [];
    };
    restartTriggers = mkOption {
      type = types.listOf types.unspecified;
      default = [];
    };
    startLimitIntervalSec = mkOption {
      type = types.nullOr types.int;
      default = null;
    };
    unitConfig = sections;
    wantedBy = strings;
    requiredBy = strings;
    requires = strings;
    wants = strings;
    after = strings;
    before = strings;
    bindsTo = strings;
    conflicts = strings;
  };
  service = {
    options =
      common
      // {
        environment = mkOption {
          default = {};
          type = types.attrsOf (
            types.nullOr (
              types.oneOf [
                types.str
                types.path
                types.package
              ]
            )
          );
        };
        path = mkOption {
          default = [];
          type = types.listOf (
            types.oneOf [
              types.package
              types.str
            ]
          );
        };
        serviceConfig = mkOption {
          default = {};
          type = types.addCheck (types.attrsOf unitOption) (
            value:
              !(value ? Type)
              || lib.elem value.Type [
                "exec"
                "simple"
                "forking"
                "oneshot"
                "dbus"
                "notify"
                "notify-reload"
                "idle"
              ]
          );
        };
        script = text;
        reload = text;
        restartIfChanged = mkOption {
          type = types.bool;
          default = true;
        };
        stopIfChanged = mkOption {
          type = types.bool;
          default = true;
        };
      };
  };
  mount = {
    options =
      common
      // {
        what = mkOption {type = types.str;};
        where = mkOption {type = types.str;};
        type = mkOption {
          type = types.str;
          default = "";
        };
        options = mkOption {
          type = types.str;
          default = "";
        };
        mountConfig = sections;
      };
  };

  show = value:
    if value == true
    then "true"
    else if value == false
    then "false"
    else toString value;
  section = values:
    lib.concatStrings (
      lib.concatLists (
        lib.mapAttrsToList (
          name: value:
            map (one: "${name}=${show one}\n") (
              if lib.isList value
              then value
              else [value]
            )
        )
        values
      )
    );
  ifSet = name: list: lib.optionalAttrs (list != []) {${name} = toString list;};
  unitSection = def:
    "[Unit]\n"
    + section (
      ifSet "Requires" def.requires
      // ifSet "Wants" def.wants
      // ifSet "After" def.after
      // ifSet "Before" def.before
      // ifSet "BindsTo" def.bindsTo
      // ifSet "Conflicts" def.conflicts
      // ifSet "Documentation" def.documentation
      // lib.optionalAttrs (def.restartTriggers != []) {
        X-Restart-Triggers = toString def.restartTriggers;
      }
      // lib.optionalAttrs (def.description != "") {Description = def.description;}
      // lib.optionalAttrs (def.startLimitIntervalSec != null) {
        StartLimitIntervalSec = def.startLimitIntervalSec;
      }
      // def.unitConfig
    );
  defaultPath = [
    pkgs.coreutils
    pkgs.findutils
    pkgs.gnugrep
    pkgs.gnused
    pkgs.systemd
  ];
  job = name: what: script: "${pkgs.writeShellScriptBin "${name}-${what}" "set -e\n${script}"}/bin/${name}-${what}";
  serviceText = name: def: let
    path = def.path ++ defaultPath;
    environment =
      {
        PATH = lib.concatMapStringsSep ":" (part: "${part}/bin") path;
      }
      // lib.filterAttrs (_: value: value != null) def.environment;
  in
    unitSection def
    + "\n[Service]\n"
    + lib.concatStrings (
      lib.mapAttrsToList (name: value: "Environment=${builtins.toJSON "${name}=${toString value}"}\n") environment
    )
    + lib.optionalString (!def.restartIfChanged) "X-RestartIfChanged=false\n"
    + lib.optionalString (!def.stopIfChanged) "X-StopIfChanged=false\n"
    + section (
      lib.optionalAttrs (def.script != "") {ExecStart = job name "start" def.script;}
      // lib.optionalAttrs (def.reload != "") {ExecReload = job name "reload" def.reload;}
      // def.serviceConfig
    );
  mountText = def:
    unitSection def
    + "\n[Mount]\n"
    + section (
      {
        What = def.what;
        Where = def.where;
      }
      // lib.optionalAttrs (def.type != "") {Type = def.type;}
      // lib.optionalAttrs (def.options != "") {Options = def.options;}
      // def.mountConfig
    );
  mountName = def: lib.replaceStrings ["/"] ["-"] (lib.removePrefix "/" def.where) + ".mount";
in {
  options.systemd.services = mkOption {
    default = {};
    type = types.attrsOf (types.submodule service);
  };
  options.systemd.mounts = mkOption {
    default = [];
    type = types.listOf (types.submodule mount);
  };

  # What toplevel.nix writes: for each unit its text, and who wants or requires it.
  config.system.build.units =
    lib.mapAttrs' (
      name: def:
        lib.nameValuePair "${name}.service" {
          inherit (def) wantedBy requiredBy enable;
          text = serviceText name def;
        }
    )
    config.systemd.services
    // lib.listToAttrs (
      map (
        def:
          lib.nameValuePair (mountName def) {
            inherit (def) wantedBy requiredBy enable;
            text = mountText def;
          }
      )
      config.systemd.mounts
    );
}
