# The packages that the project names, of whatever the machine has below /usr. Builders run unconfined, with the machine's shell and tools.
# Where a real package's layout matters to the project, the comment beside it names nixpkgs' file and commit.
{
  lib,
  system,
}: let
  # Nix takes a closed log for the builder's end, and kills what has not quite ended (2.8: Pid::kill after EOF), which fails the build on a busy
  # machine. Something else holds the log open until the builder is gone.
  hold = "(until grep -q 'State:.Z' /proc/$$/status; do sleep 0.02; done) 2> /dev/null &\n";

  # One derivation; `script` runs with the attributes of `env` in its environment.
  runCommand = name: env: script: let
    passthru = env.passthru or {};
  in
    derivation (
      {
        inherit name system;
        builder = "/bin/bash";
        PATH = "/usr/bin:/bin:/usr/sbin:/sbin";
        args = [
          "-euc"
          (hold + script)
        ];
      }
      // removeAttrs env [
        "passthru"
        "meta"
        "nativeBuildInputs"
      ]
    )
    // {
      inherit passthru;
      meta = env.meta or {};
      overrideAttrs = _: runCommand name env script;
    }
    // passthru;

  # A package of programs that the machine has. Absent ones are left out: what needs them fails by their name.
  programs = name: list:
    runCommand name {} ''
      mkdir -p $out/bin
      for program in ${toString list}; do
        found=$(type -P $program || true)
        if [ -n "$found" ]; then ln -s "$found" $out/bin/$program; fi
      done
    '';

  writeText = name: text:
    runCommand name {
      inherit text;
      passAsFile = ["text"];
    } ''cp "$textPath" $out'';

  writeScriptBin = name: text:
    runCommand name {
      inherit text;
      passAsFile = ["text"];
      meta.mainProgram = name;
    } ''mkdir -p $out/bin; cp "$textPath" $out/bin/${name}; chmod +x $out/bin/${name}'';

  self = rec {
    inherit
      lib
      runCommand
      writeText
      writeScriptBin
      ;
    inherit (lib) callPackageWith;
    stdenv = {
      hostPlatform = {
        inherit system;
        isx86_64 = true;
        isLinux = true;
      };
      mkDerivation = throw "the stand-in has no mkDerivation";
    };
    callPackage = f: args: let
      fn =
        if builtins.isFunction f
        then f
        else import f;
    in
      fn (builtins.intersectAttrs (builtins.functionArgs fn) self // args);

    runCommandLocal = runCommand;
    writeShellScriptBin = name: text: writeScriptBin name ("#!${runtimeShell}\n" + text);
    writeTextDir = path: text:
      runCommand (baseNameOf path) {
        inherit text;
        passAsFile = ["text"];
      } ''mkdir -p $out/$(dirname ${path}); cp "$textPath" $out/${path}'';
    symlinkJoin = {
      name,
      paths,
      postBuild ? "",
      passthru ? {},
      meta ? {},
      ...
    }:
      runCommand name {inherit passthru meta;} ''
        mkdir -p $out
        for path in ${toString paths}; do cp -rs --no-preserve=mode $path/. $out/; done
        ${makeWrapperFunctions}
        ${postBuild}
      '';
    # pkgs/build-support/setup-hooks/make-wrapper.sh, commit of the lookup in README.md: only --prefix and --suffix are used here.
    makeWrapperFunctions = ''
      wrapProgram() {
        local program=$1 hidden
        shift
        hidden=$(dirname $program)/.$(basename $program)-wrapped
        mv $program $hidden
        {
          echo '#!/bin/bash'
          while [ $# -gt 0 ]; do
            case $1 in
              --prefix) echo "export $2=\"$4\''${$2:+$3\$$2}\""; shift 4 ;;
              --suffix) echo "export $2=\"\''${$2:+\$$2$3}$4\""; shift 4 ;;
              --set) echo "export $2=\"$3\""; shift 3 ;;
              *) echo "wrapProgram: $1 is unknown to the stand-in" >&2; exit 1 ;;
            esac
          done
          echo "exec $hidden \"\$@\""
        } > $program
        chmod +x $program
      }
    '';
    makeWrapper = programs "make-wrapper" [];

    runtimeShell = "${bash}/bin/bash";
    bash = programs "bash" [
      "bash"
      "sh"
    ];
    coreutils = programs "coreutils" [
      "basename"
      "cat"
      "chgrp"
      "chmod"
      "chown"
      "cp"
      "dirname"
      "echo"
      "env"
      "id"
      "install"
      "kill"
      "ln"
      "mkdir"
      "mv"
      "readlink"
      "rm"
      "sha256sum"
      "sleep"
      "stat"
      "touch"
      "true"
      "uname"
    ];
    gnugrep = programs "gnugrep" ["grep"];
    gnused = programs "gnused" ["sed"];
    findutils = programs "findutils" [
      "find"
      "xargs"
    ];
    kmod = programs "kmod" ["modprobe"];
    util-linux = programs "util-linux" [
      "mount"
      "mountpoint"
      "runuser"
      "setpriv"
    ];
    systemd = programs "systemd" [
      "systemctl"
      "systemd-analyze"
      "udevadm"
    ];
    age = programs "age" [
      "age"
      "age-keygen"
    ];
    # pkgs/by-name/ra/rage: the program is bin/rage; here age does its work.
    rage = runCommand "rage" {} "mkdir -p $out/bin; ln -s $(command -v age) $out/bin/rage";
    # pkgs/tools/misc/grub: two packages, one platform each below lib/grub.
    grub2 = programs "grub" [
      "grub-mkstandalone"
      "grub-mkrescue"
    ];
    grub2_efi = grub2;
    mtools = programs "mtools" [
      "mformat"
      "mcopy"
      "mmd"
    ];
    xorriso = programs "xorriso" ["xorriso"];
    jq = programs "jq" ["jq"];
    mkShell = {packages}: runCommand "shell" {} "mkdir $out; echo ${toString packages} > $out/packages";
    pciutils = programs "pciutils" ["lspci"];
    iproute2 = programs "iproute2" ["ip"];
    curl = programs "curl" ["curl"];
    ethtool = programs "ethtool" ["ethtool"];
    cargo = programs "cargo" ["cargo"];
    rustc = programs "rustc" ["rustc"];
    clippy = programs "clippy" ["cargo-clippy"];
    rustfmt = programs "rustfmt" ["rustfmt"];
    nixfmt = programs "nixfmt" ["nixfmt"];
    alejandra = programs "alejandra" ["alejandra"];
    qemu = programs "qemu" ["qemu-system-x86_64"];
    OVMF = programs "OVMF" [];
    # pkgs/os-specific/linux/firmware/linux-firmware: lib/firmware/intel/ice/ddp/ice.pkg is a link to the newest ice-*.pkg.
    linux-firmware = runCommand "linux-firmware" {} ''
      mkdir -p $out/lib/firmware/intel/ice/ddp
      echo "stands in for the E810's package" > $out/lib/firmware/intel/ice/ddp/ice-0.pkg
      ln -s ice-0.pkg $out/lib/firmware/intel/ice/ddp/ice.pkg
    '';
    cudaPackages.cuda_nvrtc = runCommand "cuda_nvrtc" {} "mkdir -p $out/lib";
    linuxPackages = {
      kernel = {
        version = "0";
        features = {};
      };
    };

    # pkgs/build-support/rust/build-rust-package: the arguments that the project passes are named, so that a new one is noticed. Nothing
    # is compiled: the programs lie in ./built, where scripts/test-nix has put what cargo built.
    rustPlatform.buildRustPackage = {
      pname,
      version,
      src,
      cargoLock,
      buildType ? "release",
      cargoBuildFlags ? [],
      cargoTestFlags ? [],
      buildFeatures ? [],
      nativeBuildInputs ? [],
      nativeCheckInputs ? [],
      buildInputs ? [],
      doCheck ? true,
      installPhase ? null,
      postInstall ? "",
      auditable ? true,
      dontStrip ? false,
      dontPatchELF ? false,
      hardeningDisable ? [],
      passthru ? {},
      meta ? {},
    }:
      assert builtins.pathExists cargoLock.lockFile; let
        binaries = ./built;
      in
        runCommand "${pname}-${version}" {inherit passthru meta src;} ''
          runHook() { :; }
          mkdir -p $out/bin target/${buildType}
          cd $src
          built=${binaries}
          ${
            if installPhase != null
            then installPhase
            else
              lib.concatMapStringsSep "\n" (
                program: "install -m 0755 $built/${program} $out/bin/${program}"
              ) (passthru.programs or [pname])
          }
          ${postInstall}
        '';

    # nixos/lib/make-options-doc/default.nix: an attribute set with optionsCommonMark and optionsJSON.
    nixosOptionsDoc = {
      options,
      transformOptions ? lib.id,
      warningsAreErrors ? true,
      ...
    }: let
      all = map transformOptions (
        lib.filter (option: option.visible && !option.internal) (lib.optionAttrSetToDocList options)
      );
      undocumented = lib.filter (option: (option.description or null) == null) all;
      show = value:
        if value ? text
        then value.text
        else builtins.toJSON value;
      entry = option: ''
        ## ${option.name}

        ${show option.description}

        *Type:* ${option.type}
        ${lib.optionalString (option ? default) "\n*Default:* `${show option.default}`\n"}${
          lib.optionalString (option ? example) "\n*Example:* `${show option.example}`\n"
        }
      '';
    in
      assert !warningsAreErrors
      || undocumented == []
      || throw "options without a description: ${lib.concatMapStringsSep ", " (o: o.name) undocumented}"; {
        optionsCommonMark = writeText "options.md" (lib.concatMapStringsSep "\n" entry all);
      };

    # nixos/lib/testing: a test's nodes are evaluated, nothing runs. Building the result builds every node's toplevel.
    testers.runNixOSTest = test: let
      evaluated =
        if builtins.isFunction test
        then
          test {
            inherit lib;
            pkgs = self;
          }
        else if builtins.isPath test
        then import test
        else test;
      system = import ./nixos-system.nix {inherit lib;};
      defaults = evaluated.defaults or {};
      nodes =
        lib.mapAttrs (
          name: node:
            (system {
              modules = [
                ./test-node.nix
                defaults
                node
                {networking.hostName = lib.mkDefault name;}
              ];
              specialArgs.nodes = nodes;
            })
            .config
        )
        evaluated.nodes;
    in
      assert builtins.isString (
        if builtins.isFunction evaluated.testScript
        then evaluated.testScript {inherit nodes;}
        else evaluated.testScript
      );
        runCommand "vm-test-${evaluated.name}"
        {
          script =
            if builtins.isFunction evaluated.testScript
            then evaluated.testScript {inherit nodes;}
            else evaluated.testScript;
          passAsFile = ["script"];
          passthru = {inherit nodes;};
        }
        ''
          mkdir -p $out/nodes
          cp "$scriptPath" $out/script.py
          ${lib.concatStrings (
            lib.mapAttrsToList (name: node: "ln -s ${node.system.build.toplevel} $out/nodes/${name}\n") nodes
          )}
        '';
  };
in
  self
