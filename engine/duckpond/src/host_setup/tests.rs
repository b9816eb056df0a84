//! Machines made of plain files, good and bad, and what is said of them.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use pond::{HugePages, Size};

use super::*;

/// A machine's files below a folder.
struct Fake(tempfile::TempDir);

impl Fake {
    fn empty() -> Fake {
        Fake(tempfile::tempdir().expect("a folder for a test"))
    }

    fn at(&self, path: &str) -> PathBuf {
        let path = self.0.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("it has one")).expect("below the folder");
        path
    }

    fn file(&self, path: &str, text: &str) -> &Fake {
        fs::write(self.at(path), format!("{text}\n")).expect("below the folder");
        self
    }

    fn link(&self, path: &str, target: &str) -> &Fake {
        let path = self.at(path);
        let _ = fs::remove_file(&path);
        symlink(target, path).expect("below the folder");
        self
    }

    fn without(&self, path: &str) -> &Fake {
        let path = self.at(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("it was there");
        self
    }

    fn mode(&self, path: &str, mode: u32) -> &Fake {
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).expect("its owner");
        self
    }

    fn card(&self, address: &str, device: &str, driver: &str, group: u32) -> &Fake {
        let folder = format!("/sys/bus/pci/devices/{address}");
        self.file(&format!("{folder}/vendor"), "0x8086")
            .file(&format!("{folder}/device"), device)
            .file(&format!("{folder}/class"), "0x020000")
            .link(&format!("{folder}/driver"), &format!("../../../../bus/pci/drivers/{driver}"))
            .link(&format!("{folder}/iommu_group"), &format!("../../../../kernel/iommu_groups/{group}"))
            .file(&format!("/sys/kernel/iommu_groups/{group}/devices/{address}"), "")
    }

    /// The lines about one thing.
    #[track_caller]
    fn says(&self, name: &str, pond: Option<&Pond>, expected: &str) {
        let text = check(&Machine::below(self.0.path()), pond, None).text();
        let mut lines = text.lines().skip_while(|line| line.get(9..).is_none_or(|rest| !rest.starts_with(name)));
        let first = lines.next().unwrap_or_else(|| panic!("{name} is not in\n{text}"));
        let more: Vec<&str> = lines.take_while(|line| line.starts_with("         ")).collect();
        assert_eq!(std::iter::once(first).chain(more).collect::<Vec<_>>().join("\n"), expected);
    }
}

/// Two ports: one on DPDK, one on an interface.
fn pond() -> Pond {
    Pond::from_toml(
        "name = 'small'
        isolated = [2, 4]
        vfio_ids = ['8086:1593']
        huge_pages = { size = '1GiB', count = 2 }
        ports = [
            { name = 'east', link = 'dpdk:0000:01:00.0', lcore = 2 },
            { name = 'west', link = 'eth:enp3s0', lcore = 4, mtu = 9000 },
        ]
        ducks = [{ name = 'mallard', port = 'east' }, { name = 'teal', port = 'west' }]",
    )
    .expect("a description")
}

/// A pond that needs nothing but an interface.
fn plain_pond() -> Pond {
    let text = "name = 'plain'\nports = [{ name = 'a', link = 'eth:enp3s0' }]\nducks = [{ name = 'b', port = 'a' }]";
    Pond::from_toml(text).expect("a description")
}

/// A machine that has all that [`pond`] needs.
fn good() -> Fake {
    let fake = Fake::empty();
    fake.file("/proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu f16c fma avx2 sse2")
        .file("/proc/cmdline", "quiet intel_iommu=on iommu=pt isolcpus=2-5 nohz_full=2-5 rcu_nocbs=2-5")
        .file(
            "/proc/meminfo",
            "MemTotal:       131072000 kB\nMemAvailable:   100000000 kB\nHugepagesize:    1048576 kB",
        )
        .file(
            "/proc/mounts",
            "proc /proc proc rw 0 0\nhugetlbfs /dev/hugepages hugetlbfs rw,relatime,pagesize=1024M 0 0",
        )
        .file("/proc/self/limits", "Max locked memory         unlimited            unlimited            bytes")
        .file(
            "/proc/self/status",
            "Uid:\t4000000\t4000000\t0\t0\nGid:\t4000000\t4000000\t0\t0\nGroups:\t\nCapEff:\t0000000000002000",
        )
        .file("/sys/devices/system/cpu/online", "0-7")
        .file("/sys/devices/system/cpu/isolated", "2-5")
        .file("/sys/devices/system/cpu/nohz_full", "2-5")
        .file("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2")
        .file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
        .card("0000:01:00.0", "0x1593", "vfio-pci", 14)
        .file("/sys/bus/pci/drivers/vfio-pci/uevent", "")
        .file("/dev/vfio/vfio", "")
        .mode("/dev/vfio/vfio", 0o666)
        .file("/dev/vfio/14", "")
        .mode("/dev/vfio/14", 0o666)
        .file("/lib/firmware/intel/ice/ddp/ice.pkg", "")
        .file("/sys/class/net/enp3s0/operstate", "up")
        .file("/sys/class/net/enp3s0/mtu", "9000");
    for (processor, siblings) in [(2, "2-3"), (3, "2-3"), (4, "4-5"), (5, "4-5")] {
        let folder = format!("/sys/devices/system/cpu/cpu{processor}");
        fake.file(&format!("{folder}/topology/thread_siblings_list"), siblings)
            .file(&format!("{folder}/cpufreq/scaling_governor"), "performance");
    }
    fake
}

#[test]
fn a_machine_that_has_everything_is_told_so() {
    let fake = good();
    let weights = Weights { folder: "models/v32".into(), bytes: 20_000_000_000 };
    let report = check(&Machine::below(fake.0.path()), Some(&pond()), Some(weights));
    let expected = "\
ok       instructions          avx2, fma, f16c
ok       processors            2,4 of 0-7 are the pond's
ok       isolated processors   2,4
ok       their siblings        3,5 are isolated, too
ok       governor              performance on 2,4
ok       huge pages            2 of 1GiB, 2 expected
ok       huge pages' mount     /dev/hugepages, pages of 1GiB
ok       memory                102.4 GB of 134.2 GB available, 20.0 GB needed for models/v32
ok       locked memory         no limit
ok       transparent pages     madvise
ok       iommu                 on, 1 group
ok       vfio-pci              loaded
ok       card                  port east, 0000:01:00.0: 8086:1593, vfio-pci
ok       access                port east, 0000:01:00.0: /dev/vfio/14 can be opened
ok       ddp package           /lib/firmware/intel/ice/ddp/ice.pkg
ok       interface             port west, enp3s0: up, frames of 9000 bytes
ok       raw frames            allowed (CAP_NET_RAW)
note     this program          built without DPDK, so it opens no pond with east
         why  the machine can be set up before a program with DPDK is there
this machine has what the pond small needs
";
    assert_eq!(report.text(), expected);
    assert_eq!(report.missing(), 0);
}

#[test]
fn a_bare_machine_is_told_everything_with_the_reason_and_what_to_do() {
    let fake = Fake::empty();
    fake.file("/proc/cpuinfo", "vendor_id\t: GenuineIntel\nflags\t\t: fpu sse2 avx2")
        .file("/proc/cmdline", "quiet isolcpus=7")
        .file("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\nHugepagesize: 2048 kB")
        .file("/proc/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw,pagesize=2M 0 0")
        .file("/proc/self/limits", "Max locked memory         8388608              8388608              bytes")
        .file("/proc/self/status", "Uid:\t4000000\t4000000\t0\t0\nGid:\t4000000\t4000000\t0\t0\nCapEff:\t0")
        .file("/sys/devices/system/cpu/online", "0-7")
        .file("/sys/devices/system/cpu/isolated", "7")
        .file("/sys/devices/system/cpu/nohz_full", "(null)")
        .file("/sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2-3")
        .file("/sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave")
        .file("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0")
        .file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]")
        .card("0000:01:00.0", "0x1593", "ice", 14)
        .card("0000:01:00.1", "0x1593", "ice", 14)
        .without("/sys/kernel/iommu_groups")
        .file("/sys/class/net/eno1/mtu", "1500");
    let weights = Weights { folder: "models/v32".into(), bytes: 5_000_000_000 };
    let report = check(&Machine::below(fake.0.path()), Some(&pond()), Some(weights));
    let grub = |words: &str| {
        format!(
            "at the end of /etc/default/grub: GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {words}\"; then update-grub and restart"
        )
    };
    let isolate = "isolcpus=2-4 nohz_full=2-4 rcu_nocbs=2-4";
    let pages = "default_hugepagesz=1G hugepagesz=1G hugepages=2";
    let expected = format!(
        "\
warning  instructions          without fma, f16c
         why  the host computes several times slower without them; results are the same
         do   in a virtual machine, pass the processor through (QEMU: -cpu host)
ok       processors            2,4 of 0-7 are the pond's
warning  isolated processors   isolcpus lacks 2,4; nohz_full lacks 2,4; rcu_nocbs lacks 2,4
         why  a port's thread that the kernel interrupts or moves answers milliseconds late, and all ducks wait for it
         do   take isolcpus=7 off the kernel's command line: it would stand beside the new one
         do   {}
warning  their siblings        3 share cores with them and are not isolated
         why  whatever runs on the other thread of a core takes half of it from the port
         do   take isolcpus=7 off the kernel's command line: it would stand beside the new one
         do   {}
warning  governor              powersave on 2, expected performance
         why  a step is shorter than the time in which a processor raises its clock again
         do   run: cpupower frequency-set --governor performance # Debian package linux-cpupower
         do   {}
missing  huge pages            0 of 1GiB, 2 expected
         why  DPDK keeps frames in them: a card needs memory that stays where it is
         do   {}
missing  huge pages' mount     nothing at /dev/hugepages1G with pages of 1GiB; mounted: /dev/hugepages, pages of 2MiB
         why  huge pages are had as files
         do   in /etc/fstab: hugetlbfs /dev/hugepages1G hugetlbfs pagesize=1G,mode=0770 0 0
         do   run: mkdir -p /dev/hugepages1G && mount /dev/hugepages1G
warning  memory                4.3 GB of 8.6 GB available, 7.1 GB needed for models/v32
         why  the host's weights are read for every token; what does not stay in memory is read from the disc again
         do   end what else takes memory; convert a model by duckpond convert, so that the host reads its own part only
missing  locked memory         8.4 MB allowed, expected no limit
         why  the kernel counts memory that a card may reach through vfio as locked, and refuses more than this
         do   in /etc/security/limits.d/60-duckpond.conf: * - memlock unlimited
         do   log in anew; a service has LimitMEMLOCK=infinity in its unit instead
warning  transparent pages     never, expected madvise or always
         why  ducks on this machine ask for large pages for their weights; in small ones the processor looks up addresses more often
         do   run: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled
         do   {}
missing  iommu                 off
         why  a card in a program's hands could otherwise write to any memory, so vfio refuses it
         do   switch on VT-d (Intel) or AMD-Vi in the firmware's setup
         do   {}
note     iommu passthrough     iommu=pt is not on the kernel's command line
         why  with it, devices that stay with the kernel, such as its discs and the GPU, pay nothing for the IOMMU
         do   {}
missing  vfio-pci              not loaded
         why  it is what hands a card to a program
         do   in /etc/modules-load.d/duckpond.conf: vfio-pci
         do   run: modprobe vfio-pci
missing  card                  port east, 0000:01:00.0: 8086:1593 has driver ice, expected vfio-pci
         why  DPDK drives the card itself, so the kernel must have given it away
         do   run: driverctl set-override 0000:01:00.0 vfio-pci # Debian package driverctl; this card only, and for good
         do   or have every card of the kind 8086:1593 taken from the start, by these lines and update-initramfs -u:
         do   in /etc/modprobe.d/duckpond.conf: options vfio-pci ids=8086:1593
         do   in /etc/modprobe.d/duckpond.conf: softdep ice pre: vfio-pci
note     vfio_ids              no port's, and not with vfio-pci: 0000:01:00.1 (8086:1593, ice)
         why  the description keeps cards of these kinds from the kernel when the machine starts
missing  ddp package           no ice.pkg in /lib/firmware/intel/ice/ddp
         why  an E810 starts in a safe mode with one queue without its package, and DPDK refuses it like that
         do   run: apt-get install firmware-misc-nonfree # of Debian's non-free-firmware; linux-firmware has ice.pkg, too
missing  interface             port west, enp3s0: no such interface; there are eno1
         why  the port's frames go through it
         do   name one of these in the description, or give the card back to the kernel
missing  raw frames            not allowed to this user
         why  ports on interfaces send and receive raw Ethernet frames
         do   run: setcap cap_net_raw+ep $(command -v duckpond)
         do   or run it as root; a service has AmbientCapabilities=CAP_NET_RAW in its unit instead
note     this program          built without DPDK, so it opens no pond with east
         why  the machine can be set up before a program with DPDK is there
together {}
9 things are missing that the pond small needs; 6 things cost speed; nothing was changed: the lines above do it, as root
",
        grub(isolate),
        grub(isolate),
        grub("cpufreq.default_governor=performance"),
        grub(pages),
        grub("transparent_hugepage=madvise"),
        grub("intel_iommu=on"),
        grub("iommu=pt"),
        grub(&format!(
            "{isolate} cpufreq.default_governor=performance {pages} transparent_hugepage=madvise intel_iommu=on iommu=pt"
        )),
    );
    assert_eq!(report.text(), expected);
    assert_eq!(report.missing(), 9);
}

#[test]
fn a_pond_without_dpdk_is_asked_for_its_interface_only() {
    let fake = good();
    fake.without("/sys/bus/pci").without("/dev/vfio").without("/sys/kernel/iommu_groups");
    let report = check(&Machine::below(fake.0.path()), Some(&plain_pond()), None);
    let expected = "\
ok       instructions          avx2, fma, f16c
ok       governor              performance on 2-5
ok       memory                102.4 GB of 134.2 GB available
ok       transparent pages     madvise
ok       interface             port a, enp3s0: up, frames of 9000 bytes
ok       raw frames            allowed (CAP_NET_RAW)
this machine has what the pond plain needs
";
    assert_eq!(report.text(), expected);
}

#[test]
fn without_a_pond_nothing_is_missing_and_dpdk_is_noted() {
    let fake = Fake::empty();
    let report = check(&Machine::below(fake.0.path()), None, None);
    assert_eq!(report.missing(), 0, "{}", report.text());
    let text = report.text();
    for line in [
        "note     huge pages            none",
        "note     iommu                 off",
        "note     vfio-pci              not loaded",
        "ok       network cards         none on the PCI bus",
        "note     locked memory         an unknown amount allowed, expected no limit",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    fake.card("0000:01:00.0", "0x1593", "ice", 3);
    fake.says("network cards", None, "ok       network cards         0000:01:00.0 (8086:1593, ice)");
    let line = check(&Machine::below(fake.0.path()), None, None).text();
    assert!(line.contains("note     ddp package           no ice.pkg"), "{line}");
}

#[test]
fn each_fault_of_a_card_is_told_by_itself() {
    let pond = pond();
    let why = "         why  DPDK drives the card itself, so the kernel must have given it away\n";
    let fake = good();
    fake.without("/sys/bus/pci/devices/0000:01:00.0").card("0000:02:00.0", "0x125c", "igc", 2);
    fake.says(
        "card",
        Some(&pond),
        "missing  card                  port east, 0000:01:00.0: no such device; network cards here: 0000:02:00.0 (8086:125c, igc)\n         \
         why  the port's frames go through it\n         \
         do   name another card in the description, or look whether it is seated; lspci -D lists them",
    );
    // A card of a kind that the description does not take as a whole.
    let fake = good();
    fake.card("0000:01:00.0", "0x125c", "igc", 14);
    fake.says(
        "card",
        Some(&pond),
        &format!(
            "missing  card                  port east, 0000:01:00.0: 8086:125c has driver igc, expected vfio-pci\n{why}         \
             do   run: driverctl set-override 0000:01:00.0 vfio-pci # Debian package driverctl; this card only, and for good"
        ),
    );
    let fake = good();
    fake.card("0000:01:00.1", "0x1593", "ice", 14).card("0000:00:01.0", "0x460d", "pcieport", 14);
    fake.says(
        "iommu group",
        Some(&pond),
        "missing  iommu group           port east, 0000:01:00.0: group 14 also has 0000:01:00.1 (ice)\n         \
         why  a group is handed over as a whole, or not at all\n         \
         do   give these to vfio-pci, too, or put the card into a slot with a group of its own",
    );
    let fake = good();
    fake.mode("/dev/vfio/14", 0o600).without("/dev/vfio/vfio");
    fake.says(
        "access",
        Some(&pond),
        "missing  access                port east, 0000:01:00.0: there is no /dev/vfio/vfio, /dev/vfio/14 is not for this user\n         \
         why  the program opens the group's file to reach the card\n         \
         do   in /etc/udev/rules.d/60-duckpond.rules: SUBSYSTEM==\"vfio\", GROUP=\"duckpond\", MODE=\"0660\"\n         \
         do   run: groupadd --force --system duckpond && udevadm control --reload && udevadm trigger --subsystem-match=vfio\n         \
         do   run duckpond as a member of the group duckpond, or as root",
    );
    let fake = good();
    fake.without("/lib/firmware/intel/ice/ddp/ice.pkg").file("/lib/firmware/intel/ice/ddp/ice-1.3.36.0.pkg.xz", "");
    fake.says(
        "ddp package",
        Some(&pond),
        "missing  ddp package           /lib/firmware/intel/ice/ddp/ice-1.3.36.0.pkg.xz is compressed, which DPDK does not read\n         \
         why  an E810 starts in a safe mode with one queue without its package, and DPDK refuses it like that\n         \
         do   run: xz -dc /lib/firmware/intel/ice/ddp/ice-1.3.36.0.pkg.xz > /lib/firmware/intel/ice/ddp/ice.pkg",
    );
}

#[test]
fn files_of_vfio_are_judged_by_group_and_capability_too() {
    let pond = pond();
    let fake = good();
    fake.mode("/dev/vfio/14", 0o660).mode("/dev/vfio/vfio", 0o660);
    let status = |gid: u32, capabilities: &str| {
        format!("Uid:\t4000000\t4000000\t0\t0\nGid:\t1\t4000000\t0\t0\nGroups:\t7 {gid} \nCapEff:\t{capabilities}")
    };
    let gid = fs::metadata(fake.at("/dev/vfio/14")).expect("it is there").gid();
    let good = "ok       access                port east, 0000:01:00.0: /dev/vfio/14 can be opened";
    fake.file("/proc/self/status", &status(gid, "0")).says("access", Some(&pond), good);
    fake.file("/proc/self/status", &status(3_999_999, "0000000000002002")).says("access", Some(&pond), good);
    let report = |fake: &Fake| check(&Machine::below(fake.0.path()), Some(&pond), None);
    let before = report(&fake).missing();
    fake.file("/proc/self/status", &status(3_999_999, "2000"));
    assert_eq!((before, report(&fake).missing()), (0, 1));
}

#[test]
fn pages_memory_and_links_that_do_not_fit_are_told() {
    let mut pond = pond();
    let fake = good();
    fake.without("/sys/kernel/mm/hugepages");
    fake.says(
        "huge pages ",
        Some(&pond),
        "missing  huge pages            there are no pages of 1GiB here\n         \
         why  DPDK keeps frames in them: a card needs memory that stays where it is\n         \
         do   write size = \"2MiB\" and count = 1024 in the description's huge_pages",
    );
    pond.huge_pages = Some(HugePages { size: Size(2 << 20), count: 1024, mount: Some("/mnt/pages".into()) });
    let fake = good();
    fake.file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "1023")
        .file("/proc/meminfo", "MemTotal: 131072000 kB\nMemAvailable: 100000000 kB\nHugepagesize: 2048 kB")
        .file("/proc/mounts", "hugetlbfs /dev/hugepages hugetlbfs rw 0 0");
    fake.says(
        "huge pages ",
        Some(&pond),
        "missing  huge pages            1023 of 2MiB, 1024 expected\n         \
         why  DPDK keeps frames in them: a card needs memory that stays where it is\n         \
         do   in /etc/sysctl.d/60-duckpond.conf: vm.nr_hugepages = 1024\n         \
         do   run: sysctl --system",
    );
    fake.says(
        "huge pages' mount",
        Some(&pond),
        "missing  huge pages' mount     nothing at /mnt/pages with pages of 2MiB; mounted: /dev/hugepages, pages of 2MiB\n         \
         why  huge pages are had as files\n         \
         do   in /etc/fstab: hugetlbfs /mnt/pages hugetlbfs pagesize=2M,mode=0770 0 0\n         \
         do   run: mkdir -p /mnt/pages && mount /mnt/pages",
    );
    pond.huge_pages = None;
    fake.says(
        "huge pages ",
        Some(&pond),
        "missing  huge pages            2 of 1GiB, 1023 of 2MiB; the description says nothing of them\n         \
         why  ports on DPDK keep frames in them, and only so many as are described are set aside\n         \
         do   add huge_pages to the description, such as [huge_pages] size = \"1GiB\", count = 2",
    );
    pond.huge_pages = Some(HugePages { size: Size(1 << 30), count: 200, mount: None });
    fake.says(
        "memory",
        Some(&pond),
        "missing  memory                134.2 GB in all, but the huge pages of the description are 214.7 GB\n         \
         why  they are set aside when the machine starts, or not at all\n         \
         do   describe fewer huge pages, or put in more memory",
    );
    fake.file("/sys/class/net/enp3s0/operstate", "down");
    fake.says(
        "interface",
        Some(&pond),
        "missing  interface             port west, enp3s0: it is down, expected up\n         \
         why  no frame goes through it like this\n         \
         do   run: ip link set enp3s0 up # and look whether a cable is in it",
    );
    fake.file("/sys/class/net/enp3s0/operstate", "up").file("/sys/class/net/enp3s0/mtu", "1500");
    fake.says(
        "interface",
        Some(&pond),
        "warning  interface             port west, enp3s0: frames of 1500 bytes, 9000 described\n         \
         why  weights travel in longer frames where both ends have them\n         \
         do   run: ip link set enp3s0 mtu 9000",
    );
    fake.link("/sys/class/net/enp3s0/device", "../../../0000:05:00.0");
    pond.ports[1].pci = Some("0000:03:00.0".parse().expect("an address"));
    fake.says(
        "interface",
        Some(&pond),
        "missing  interface             port west, enp3s0: it is the card 0000:05:00.0, expected 0000:03:00.0\n         \
         why  the two are not one card\n         \
         do   correct the port's pci or its link in the description",
    );
}

#[test]
fn processors_that_are_not_there_are_missing() {
    let mut pond = pond();
    pond.ports[0].lcore = Some(12);
    good().says(
        "processors",
        Some(&pond),
        "missing  processors            there is no processor 12; there are 0-7\n         \
         why  a port's thread is bound to its processor\n         \
         do   name others as lcore and isolated in the description; lscpu -e shows which share a core",
    );
}

#[test]
fn each_way_of_keeping_a_processor_free_counts_by_itself() {
    let fake = good();
    let ok = "ok       isolated processors   2,4";
    fake.file("/proc/cmdline", "isolcpus=2-5 nohz_full=2-5").says("isolated processors", Some(&pond()), ok);
    fake.file("/proc/cmdline", "isolcpus=2-5 rcu_nocbs=4").file("/sys/devices/system/cpu/nohz_full", "(null)");
    fake.says(
        "isolated processors",
        Some(&pond()),
        "warning  isolated processors   nohz_full lacks 2,4; rcu_nocbs lacks 2\n         \
         why  a port's thread that the kernel interrupts or moves answers milliseconds late, and all ducks wait for it\n         \
         do   take rcu_nocbs=4 off the kernel's command line: it would stand beside the new one\n         \
         do   at the end of /etc/default/grub: GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX nohz_full=2-5 rcu_nocbs=2-5\"; then update-grub and restart",
    );
    fake.file("/proc/cmdline", "isolcpus=2,4 nohz_full=2-5").file("/sys/devices/system/cpu/isolated", "2,4");
    fake.says(
        "their siblings",
        Some(&pond()),
        "warning  their siblings        3,5 share cores with them and are not isolated\n         \
         why  whatever runs on the other thread of a core takes half of it from the port\n         \
         do   take isolcpus=2,4 off the kernel's command line: it would stand beside the new one\n         \
         do   at the end of /etc/default/grub: GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX isolcpus=2-5 rcu_nocbs=2-5\"; then update-grub and restart",
    );
    // Asked for, and not done.
    fake.file("/proc/cmdline", "iommu=pt isolcpus=2-5 nohz_full=2-5 rcu_nocbs=2-5");
    let text = check(&Machine::below(fake.0.path()), Some(&pond()), None).text();
    assert!(text.contains("do   start a kernel with CONFIG_CPU_ISOLATION and CONFIG_NO_HZ_FULL"), "{text}");
    assert!(!text.contains("grub"), "{text}");
}

#[test]
fn on_nixos_parameters_are_options() {
    let fake = good();
    fake.file("/etc/NIXOS", "").file("/proc/cmdline", "quiet").without("/sys/kernel/iommu_groups");
    let text = check(&Machine::below(fake.0.path()), Some(&pond()), None).text();
    let line =
        "         do   in the configuration: boot.kernelParams = [ \"iommu=pt\" ]; then nixos-rebuild boot and restart";
    assert!(text.lines().any(|found| found == line), "{text}");
    assert!(!text.contains("grub"), "{text}");
    assert!(text.contains("the module services.duckpond sets all of this"), "{text}");
    fake.without("/lib/firmware");
    let text = check(&Machine::below(fake.0.path()), Some(&pond()), None).text();
    assert!(text.contains("do   in the configuration: services.duckpond.ddp.enable = true;\n"), "{text}");
}

#[test]
fn programs_read_the_same_as_json() {
    let fake = good();
    fake.file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]").without("/dev/vfio/14");
    let report = check(&Machine::below(fake.0.path()), Some(&pond()), None);
    let json: serde_json::Value = serde_json::from_str(&report.json()).expect("it is JSON");
    assert_eq!((&json["pond"], &json["missing"], &json["warnings"]), (&"small".into(), &1.into(), &1.into()));
    assert_eq!(json["kernel_parameters"], "transparent_hugepage=madvise");
    let checks = json["checks"].as_array().expect("a list");
    let named = |name: &str| checks.iter().find(|check| check["name"] == name).expect("it is there");
    assert_eq!(named("access")["state"], "missing");
    assert_eq!(named("access")["found"], "port east, 0000:01:00.0: there is no /dev/vfio/14");
    assert_eq!(
        named("instructions"),
        &serde_json::json!({"name": "instructions", "state": "ok", "found": "avx2, fma, f16c"})
    );
    assert_eq!(named("transparent pages")["do"][0], "run: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled");
}

#[test]
fn files_with_anything_in_them_are_survived() {
    let fake = good();
    for path in [
        "/proc/cmdline",
        "/proc/meminfo",
        "/proc/mounts",
        "/proc/self/limits",
        "/proc/self/status",
        "/proc/cpuinfo",
        "/sys/devices/system/cpu/online",
        "/sys/devices/system/cpu/isolated",
        "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/bus/pci/devices/0000:01:00.0/vendor",
        "/sys/class/net/enp3s0/mtu",
    ] {
        for text in [
            "",
            "\0\u{1b}[31m",
            "é: -1 kB = , : - [",
            "99999999999999999999999999",
            "MemTotal: x kB",
            "a b hugetlbfs pagesize=é",
        ] {
            fake.file(path, text);
            for pond in [None, Some(&pond())] {
                let text = check(&Machine::below(fake.0.path()), pond, None).text();
                assert!(!text.contains(['\0', '\u{1b}']), "{path}: {text:?}");
            }
        }
    }
}
