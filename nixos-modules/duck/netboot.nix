# A duck that keeps Linux and has no disk: everything comes over the network, from whoever answers its DHCP request there. Import it beside
# the module of ducks; `system.build.netbootImages` then holds kernel, ramdisk and a script for iPXE.
#
# The pond's own boot service offers one image to all its ducks, those without an operating system. Machines that boot this one need another
# server (any that chains to iPXE), so keep the two kinds apart by ports or by a server that tells them by hardware address.
{
  config,
  pkgs,
  modulesPath,
  ...
}: {
  imports = ["${modulesPath}/installer/netboot/netboot.nix"];
  system.build.netbootImages = pkgs.symlinkJoin {
    name = "duckd-netboot-${config.networking.hostName}";
    paths = [
      config.system.build.netbootRamdisk
      config.system.build.kernel
      config.system.build.netbootIpxeScript
    ];
  };
}
