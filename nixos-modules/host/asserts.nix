# What must hold between options, each with the option to set. What must hold within the description is ../pond.nix's.
{
  config,
  lib,
  ...
}: let
  cfg = config.services.duckpond;
  here = "${config.networking.hostName}: services.duckpond";
  pages = cfg.hugePages;
  loopback = lib.hasPrefix "127." cfg.host || cfg.host == "::1" || cfg.host == "localhost";
  both = lib.intersectLists cfg.cpus.isolated cfg.cpus.siblings;
  show = lib.concatMapStringsSep ", " toString;
  description = cfg.description;
  isolated = description.isolated or [];
  cards = cfg.cards;
  ids = description.vfio_ids or cfg.vfio.ids;
in {
  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = (pages.size == null) == (pages.count == null);
        message = "${here}.hugePages: size and count belong together; set ${
          if pages.size == null
          then "hugePages.size to 2MiB or 1GiB"
          else "hugePages.count to how many the machine can do without"
        }.";
      }
      {
        assertion = both == [];
        message = "${here}.cpus.siblings: ${show both} are in cpus.isolated too; list there the processors of ports, and here the other threads of their cores.";
      }
      {
        assertion = !(lib.elem 0 isolated);
        message = "${here}.cpus.isolated: processor 0 cannot be isolated, the kernel's own work is there; choose others.";
      }
      {
        assertion = (cfg.tls.certificate == null) == (cfg.tls.key == null);
        message = "${here}.tls: certificate and key belong together; set both, or none for http.";
      }
      {
        assertion = loopback || cfg.apiKeysFile != null || cfg.allowAnyone;
        message = "${here}.host: others can reach ${cfg.host}, and no API keys are asked for; set secrets.apiKeys or apiKeysFile, or allowAnyone if that is meant.";
      }
      {
        assertion = cfg.openFirewall -> !loopback;
        message = "${here}.openFirewall: the server listens on ${cfg.host}, which nobody else can reach; set host to 0.0.0.0 or an address of this machine.";
      }
      {
        assertion = cards != [] -> cfg.iommu != null;
        message = "${here}.iommu: ${show cards} are bound to vfio-pci, which needs an IOMMU; set iommu to \"intel\" or \"amd\".";
      }
      {
        assertion = description != {} -> (description.key or null) != null;
        message = "${here}.keyFile: a pond needs its secret key; set secrets.key to a file encrypted by age, or keyFile to where `duckpond key new` put it on the host.";
      }
      {
        assertion = let
          state = config.fileSystems."/var/lib/duckpond" or null;
        in
          state == null || state.neededForBoot;
        message = "${config.networking.hostName}: fileSystems.\"/var/lib/duckpond\".neededForBoot: the kernels are signed there when the system is activated, which is before other file systems are mounted; set it to true.";
      }
      {
        assertion = cfg.prometheus.enable && cfg.apiKeysFile != null -> cfg.prometheus.keyFile != null;
        message = "${here}.prometheus.keyFile: the server asks for API keys, so Prometheus needs one; set it to a file with one key.";
      }
      {
        assertion = cfg.pond != null -> cfg.ports == [] && cfg.ducks == [] && cfg.cpus.isolated == [] && cfg.cpus.siblings == [] && pages.count == null;
        message = "${here}.pond: it says ports, ducks, isolated processors and huge pages already; set them there, or leave pond out.";
      }
    ];
    warnings =
      lib.optional (ids != [])
      "${here}.vfio.ids: every card with ${show ids} is taken from the kernel, the management port too if it is one of them."
      ++ lib.optional
      (lib.any (port: lib.hasPrefix "dpdk:" port.link) (description.ports or []) && !(cfg.package.passthru.dpdk or false))
      "${here}.package: the description has DPDK ports, and this engine is built without DPDK: it will say so and end.";
  };
}
