# nixos/modules/installer/netboot/netboot.nix 03a5cc692fa6: the outputs that are used.
{
  config,
  lib,
  pkgs,
  ...
}: {
  fileSystems."/" = lib.mkForce {
    fsType = "tmpfs";
    device = "tmpfs";
  };
  system.build.kernel = pkgs.writeTextDir "bzImage" "stands in for a kernel";
  system.build.netbootRamdisk = pkgs.runCommand "initrd" {} ''
    mkdir $out; echo "stands in for a ramdisk with ${config.system.build.toplevel}" > $out/initrd
  '';
  system.build.netbootIpxeScript = pkgs.writeTextDir "netboot.ipxe" ''
    #!ipxe
    kernel bzImage init=${config.system.build.toplevel}/init initrd=initrd ${toString config.boot.kernelParams}
    initrd initrd
    boot
  '';
}
