# config.system.build.toplevel: what the options come to, as files. Every option that options.nix declares is forced, whether it ends up in a
# file or not, so that a value of the wrong type is noticed (an evaluation is lazy).
#   kernel-params            the kernel's command line, one line
#   etc/                     environment.etc, systemd units with their links, modprobe.d, modules-load.d, sysctl.d, tmpfiles.d, udev rules
#   activate                 users, then the activation scripts in the order of their dependencies; a bash script
#   sw/bin                   programs of environment.systemPackages
{
  config,
  lib,
  options,
  pkgs,
  ...
}: let
  failed = map (a: a.message) (lib.filter (a: !a.assertion) config.assertions);
  checked =
    if failed != []
    then throw "Failed assertions:\n${lib.concatMapStringsSep "\n" (message: "- ${message}") failed}"
    else lib.foldr lib.warn true config.warnings;

  # Texts of everything, with paths in strings kept as they are; packages by their names.
  forced =
    builtins.deepSeq (lib.mapAttrsRecursiveCond (o: !(lib.isOption o)) (
      path: option:
        if option.internal or false || lib.head path == "_module" || lib.take 2 path == ["system" "build"]
        then null
        else if !option.isDefined && own path
        then
          # A module that is not enabled may have options that nobody set.
          null
        else if !option.isDefined
        then throw "the option `${lib.showOption path}' is used but not defined"
        else plain 0 option.value
    ) (removeAttrs options ["_module"]))
    true;
  own = path: lib.elem (lib.take 2 path) [["services" "duckpond"] ["services" "duckd"]];
  plain = depth: value:
    if lib.isDerivation value
    then value.name
    else if lib.isFunction value
    then null
    else if lib.isAttrs value
    then
      if depth > 12
      then null
      else lib.mapAttrs (_: plain (depth + 1)) value
    else if lib.isList value
    then map (plain (depth + 1)) value
    else value;

  units = config.system.build.units;
  files =
    lib.mapAttrs' (_: entry: lib.nameValuePair entry.target entry.source) (
      lib.filterAttrs (_: entry: entry.enable) config.environment.etc
    )
    // lib.mapAttrs' (
      name: unit:
        lib.nameValuePair "systemd/system/${name}" (
          if unit.enable
          then pkgs.writeText (lib.replaceStrings ["@"] ["-"] "unit-${name}") unit.text
          else "/dev/null"
        )
    )
    units
    // {
      "modules-load.d/nixos.conf" = pkgs.writeText "modules" (
        lib.concatMapStrings (module: module + "\n") config.boot.kernelModules
      );
      "modprobe.d/nixos.conf" = pkgs.writeText "modprobe" (
        lib.concatMapStrings (module: "blacklist ${module}\n") config.boot.blacklistedKernelModules
        + config.boot.extraModprobeConfig
      );
      "sysctl.d/60-nixos.conf" = pkgs.writeText "sysctl" (
        lib.concatStrings (
          lib.mapAttrsToList (
            name: value:
              lib.optionalString (value != null) "${name}=${
                if value == false
                then "0"
                else toString value
              }\n"
          )
          config.boot.kernel.sysctl
        )
      );
      "tmpfiles.d/00-nixos.conf" = pkgs.writeText "tmpfiles" (
        lib.concatMapStrings (rule: rule + "\n") config.systemd.tmpfiles.rules
      );
      "udev/rules.d/99-local.rules" = pkgs.writeText "udev" config.services.udev.extraRules;
      "systemd/journald.conf" = pkgs.writeText "journald" "[Journal]\n${config.services.journald.extraConfig}";
      "hostname" = pkgs.writeText "hostname" "${config.networking.hostName}\n";
      "security/limits.conf" = pkgs.writeText "limits" (
        lib.concatMapStrings (l: "${l.domain} ${l.type} ${l.item} ${toString l.value}\n") config.security.pam.loginLimits
      );
      "set-environment" = pkgs.writeText "set-environment" (
        lib.concatStrings (
          lib.mapAttrsToList (
            name: value: "export ${name}=\"${
              if lib.isList value
              then lib.concatStringsSep ":" value
              else value
            }\"\n"
          )
          config.environment.variables
        )
      );
    }
    // lib.mapAttrs' (
      name: paths:
        lib.nameValuePair "tmpfiles.d/${name}.conf" (
          pkgs.writeText "tmpfiles-${name}" (
            lib.concatStrings (
              lib.concatLists (
                lib.mapAttrsToList (
                  path: entries:
                    lib.mapAttrsToList (
                      _: e: "'${e.type}' '${path}' '${e.mode}' '${e.user}' '${e.group}' '${e.age}' ${e.argument}\n"
                    )
                    entries
                )
                paths
              )
            )
          )
        )
    )
    config.systemd.tmpfiles.settings;

  links = kind: names: name:
    lib.concatMapStrings (target: ''
      mkdir -p $out/etc/systemd/system/${target}.${kind}
      ln -s ../${name} $out/etc/systemd/system/${target}.${kind}/${name}
    '')
    names;

  # nixos/modules/system/activation/activation-script.nix: a text, or a text with the names of what must come before.
  snippets =
    lib.mapAttrs (
      name: value: let
        entry =
          if lib.isString value
          then lib.noDepEntry value
          else value;
      in
        entry // {text = "# ${name}\n${entry.text}\n";}
    )
    config.system.activationScripts;
  activate = ''
    #!${pkgs.runtimeShell}
    export PATH=${
      lib.makeBinPath [
        pkgs.coreutils
        pkgs.gnugrep
        pkgs.findutils
        pkgs.util-linux
      ]
    }:/usr/sbin:/usr/bin:/sbin:/bin
    _status=0
    trap "_status=1 _localstatus=\$?" ERR
    umask 0022
    ${lib.concatStrings (lib.textClosureList snippets (lib.attrNames snippets))}
    exit $_status
  '';
in {
  # The names that other scripts may wait for, by nixos/modules/config/users-groups.nix and others; accounts are made with the machine's tools.
  config.system.activationScripts = {
    specialfs = "";
    etc = "";
    groups = {
      deps = [];
      text = lib.concatMapStrings (
        name: "getent group ${name} > /dev/null || groupadd --system ${name}\n"
      ) (lib.attrNames config.users.groups);
    };
    users = {
      deps = ["groups"];
      text = lib.concatStrings (
        lib.mapAttrsToList (name: user: ''
          id ${name} > /dev/null 2>&1 || useradd --system --gid ${user.group} --home-dir ${user.home} --shell /usr/sbin/nologin ${name}
        '') (lib.filterAttrs (_: user: user.isSystemUser) config.users.users)
      );
    };
  };

  config.system.build.toplevel = assert checked;
  assert forced;
    pkgs.runCommand "nixos-system-${config.networking.hostName}-stand-in"
    {
      params = toString config.boot.kernelParams;
      inherit activate;
      passAsFile = ["activate"];
    }
    ''
      mkdir -p $out/etc $out/sw/bin
      echo "$params" > $out/kernel-params
      install -m 0755 "$activatePath" $out/activate
      ${lib.concatStrings (
        lib.mapAttrsToList (target: source: ''
          mkdir -p "$out/etc/$(dirname '${target}')"
          ln -s '${source}' "$out/etc/"'${target}'
        '')
        files
      )}
      ${lib.concatStrings (lib.mapAttrsToList (name: unit: links "wants" unit.wantedBy name) units)}
      ${lib.concatStrings (lib.mapAttrsToList (name: unit: links "requires" unit.requiredBy name) units)}
      for package in ${toString config.environment.systemPackages}; do
        for program in $package/bin/*; do ln -sf $program $out/sw/bin/; done
      done
    '';
}
