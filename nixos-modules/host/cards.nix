# Cards: which functions belong to the engine, their driver, their firmware; and NVIDIA's.
{
  config,
  lib,
  pkgs,
  ...
}: let
  cfg = config.services.duckpond;
  units = import ../units.nix {inherit lib;};
  # Of a port: the address in its link, or the one beside it if DPDK drives it by another name.
  address = port: let
    linked = builtins.match "dpdk:([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\\.[0-7])" port.link;
  in
    if linked != null
    then linked
    else if lib.hasPrefix "dpdk:" port.link && port ? pci
    then [port.pci]
    else [];
  bind = pkgs.writeScriptBin "vfio-bind" (
    lib.replaceStrings ["#!/bin/sh"] ["#!${pkgs.runtimeShell}"] (builtins.readFile ./vfio-bind.sh)
  );
  ids = cfg.description.vfio_ids or cfg.vfio.ids;
  program = action: "${bind}/bin/vfio-bind ${action} ${lib.concatStringsSep " " cfg.cards}";
  unit = units.vfio {
    start = program "bind";
    stop = program "release";
  };
  # The package as DPDK reads it: a plain file, whatever the kernel's copies are compressed with.
  pipeline =
    if cfg.ddp.package != null
    then cfg.ddp.package
    else pkgs.runCommand "ice.pkg" {} "cp -L ${pkgs.linux-firmware}/lib/firmware/intel/ice/ddp/ice.pkg $out";
in {
  options.services.duckpond.cards = lib.mkOption {
    type = lib.types.listOf lib.types.str;
    internal = true;
    readOnly = true;
    description = "PCI addresses that are bound to vfio-pci.";
  };

  config = lib.mkIf cfg.enable (
    lib.mkMerge [
      {
        services.duckpond.cards = lib.unique (
          lib.concatMap address (cfg.description.ports or []) ++ cfg.vfio.functions
        );
      }
      (lib.mkIf (cfg.cards != []) {
        systemd.services.duckpond-vfio = {
          inherit
            (unit)
            description
            before
            after
            wants
            unitConfig
            serviceConfig
            ;
          wantedBy = ["multi-user.target"];
          path = [
            pkgs.kmod
            pkgs.coreutils
          ];
          # Not while the engine has them: vfio-pci would wait for it for ever. A change counts from the next boot.
          restartIfChanged = false;
        };
      })
      (lib.mkIf (cfg.cards != [] || ids != []) {
        boot.kernelModules = ["vfio-pci"];
        # The group of a card's functions, for the engine.
        services.udev.extraRules = ''
          SUBSYSTEM=="vfio", GROUP="duckpond", MODE="0660"
        '';
      })
      (lib.mkIf (ids != []) {
        boot.initrd.kernelModules = ["vfio-pci"];
        boot.extraModprobeConfig = ''
          softdep ice pre: vfio-pci
          options vfio-pci ids=${lib.concatStringsSep "," ids}
        '';
      })
      (lib.mkIf cfg.ddp.enable {
        systemd.tmpfiles.settings.duckpond."/lib/firmware/intel/ice/ddp/ice.pkg"."L+".argument = "${pipeline}";
      })
      (lib.mkIf cfg.gpu.nvidia.enable {
        services.xserver.videoDrivers = ["nvidia"];
        hardware.graphics.enable = true;
        hardware.nvidia = {
          open = lib.mkDefault true;
          nvidiaPersistenced = lib.mkDefault true;
        };
      })
    ]
  );
}
