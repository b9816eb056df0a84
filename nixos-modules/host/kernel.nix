# What the kernel is told before it starts, and what it sets aside. All of it comes from the description, so that there is one table.
{
  config,
  lib,
  pkgs,
  ...
}: let
  cfg = config.services.duckpond;
  description = cfg.description;
  isolated = description.isolated or [];
  cpus = lib.concatMapStringsSep "," toString (lib.sort lib.lessThan isolated);
  pages = description.huge_pages or null;
  # As the kernel spells sizes.
  size =
    {
      "2MiB" = "2M";
      "1GiB" = "1G";
    }
    .${pages.size}
    or (throw "services.duckpond.hugePages.size: ${pages.size} is neither 2MiB nor 1GiB");
  mount = pages.mount or null;
in {
  config = lib.mkIf cfg.enable {
    boot.kernelParams =
      lib.optionals (pages != null) [
        "default_hugepagesz=${size}"
        "hugepagesz=${size}"
        "hugepages=${toString pages.count}"
      ]
      # AMD's is on wherever the BIOS has it on.
      ++ lib.optional (cfg.iommu == "intel") "intel_iommu=on"
      ++ lib.optional (cfg.iommu != null) "iommu=pt"
      ++ lib.optionals (isolated != []) [
        "isolcpus=managed_irq,domain,${cpus}"
        "nohz_full=${cpus}"
        "rcu_nocbs=${cpus}"
      ]
      ++ lib.optional (cfg.cpus.maxCState != null) "intel_idle.max_cstate=${toString cfg.cpus.maxCState}";

    systemd.mounts = lib.mkIf (mount != null) [
      {
        description = "Huge pages of ${pages.size}";
        what = "hugetlbfs";
        where = toString mount;
        type = "hugetlbfs";
        options = "pagesize=${size},mode=0755";
        wantedBy = ["multi-user.target"];
        before = ["duckpond.service"];
        unitConfig.DefaultDependencies = false;
      }
    ];
    # A folder of the engine's own in them.
    systemd.services.duckpond.serviceConfig.ExecStartPre = lib.mkIf (pages != null) [
      "+${pkgs.coreutils}/bin/install -d -m 0700 -o duckpond -g duckpond ${
        if mount == null
        then "/dev/hugepages"
        else toString mount
      }/duckpond"
    ];
    systemd.services.duckpond.unitConfig = lib.mkIf (mount != null) {
      RequiresMountsFor = toString mount;
    };

    powerManagement.cpuFreqGovernor = lib.mkIf (cfg.cpus.governor != null) (lib.mkDefault cfg.cpus.governor);
  };
}
