//! Network cards for DPDK: there, in vfio-pci's hands, alone in their groups, reachable, with their package; and the IOMMU.

use pond::{PciAddress, VfioId};

use super::Wanted;
use super::machine::Machine;
use super::report::{Finding, Fix, State};
use crate::format::count;

const DEVICES: &str = "/sys/bus/pci/devices";
const VFIO: &str = "vfio-pci";
/// Intel's E810 and E810-XXV, for backplanes, QSFP and SFP.
const E810: [u16; 5] = [0x1591, 0x1592, 0x1593, 0x1599, 0x159b];
const INTEL: u16 = 0x8086;
/// Where DPDK looks for the package, in this order.
const PACKAGES: [&str; 2] = ["/lib/firmware/updates/intel/ice/ddp", "/lib/firmware/intel/ice/ddp"];

/// Looks at all of it.
pub fn check(machine: &Machine, wanted: &Wanted, findings: &mut Vec<Finding>) {
    let Some(lack) = wanted.for_dpdk() else { return };
    findings.push(iommu(machine, lack));
    findings.extend(passthrough(machine));
    findings.push(driver(machine, lack));
    let cards: Vec<(String, PciAddress)> = match wanted.pond {
        Some(_) => wanted.dpdk_cards().map(|(port, pci)| (format!("port {}, {pci}", port.name), pci)).collect(),
        None => Vec::new(),
    };
    if wanted.pond.is_none() {
        findings.push(survey(machine));
    }
    for (name, pci) in &cards {
        findings.push(card(machine, wanted, name, *pci));
        findings.extend(group(machine, name, *pci));
    }
    findings.extend(kept(machine, wanted));
    let ids = cards.iter().filter_map(|(_, pci)| id(machine, &pci.to_string()));
    let of_survey = addresses(machine).into_iter().filter(|_| wanted.pond.is_none());
    let all: Vec<VfioId> = ids.chain(of_survey.filter_map(|address| id(machine, &address))).collect();
    if all.iter().any(|id| id.vendor == INTEL && E810.contains(&id.device)) {
        findings.push(package(machine, lack));
    }
}

/// Devices of the PCI bus, by address.
fn addresses(machine: &Machine) -> Vec<String> {
    machine.names(DEVICES)
}

fn id(machine: &Machine, address: &str) -> Option<VfioId> {
    let number = |name: &str| {
        let text = machine.text(&format!("{DEVICES}/{address}/{name}"))?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
    };
    Some(VfioId { vendor: number("vendor")?, device: number("device")? })
}

fn driver_of(machine: &Machine, address: &str) -> Option<String> {
    machine.link(&format!("{DEVICES}/{address}/driver"))
}

/// All network cards, each with its id and driver.
fn network_cards(machine: &Machine) -> Vec<String> {
    let is_card = |address: &String| {
        machine.text(&format!("{DEVICES}/{address}/class")).is_some_and(|class| class.starts_with("0x02"))
    };
    let shown = |address: String| {
        let id = id(machine, &address).map_or("unknown".to_owned(), |id| id.to_string());
        let driver = driver_of(machine, &address).unwrap_or_else(|| "no driver".to_owned());
        format!("{address} ({id}, {driver})")
    };
    addresses(machine).into_iter().filter(is_card).map(shown).collect()
}

fn survey(machine: &Machine) -> Finding {
    let cards = network_cards(machine);
    let found = if cards.is_empty() { "none on the PCI bus".to_owned() } else { cards.join(", ") };
    Finding::ok("network cards", found)
}

fn iommu(machine: &Machine, lack: State) -> Finding {
    const NAME: &str = "iommu";
    const WHY: &str = "a card in a program's hands could otherwise write to any memory, so vfio refuses it";
    let groups = machine.names("/sys/kernel/iommu_groups").len();
    if groups > 0 {
        return Finding::ok(NAME, format!("on, {}", count(groups, "group")));
    }
    if machine.text("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode").as_deref() == Some("Y") {
        return Finding::new(
            NAME,
            State::Note,
            "off, and vfio is told to do without",
            "a fault in this program or a card can overwrite any memory",
            Vec::new(),
        );
    }
    let mut fixes = vec![Fix::Do("switch on VT-d (Intel) or AMD-Vi in the firmware's setup".into())];
    if machine.field("/proc/cpuinfo", "vendor_id").as_deref() == Some("GenuineIntel") {
        fixes.push(Fix::Kernel("intel_iommu=on".into()));
    }
    Finding::new(NAME, lack, "off", WHY, fixes)
}

fn passthrough(machine: &Machine) -> Option<Finding> {
    let wants = machine.parameters("iommu").iter().any(|value| value == "pt");
    (!wants).then(|| {
        Finding::new(
            "iommu passthrough",
            // It costs speed, but not the ports'.
            State::Note,
            "iommu=pt is not on the kernel's command line",
            "with it, devices that stay with the kernel, such as its discs and the GPU, pay nothing for the IOMMU",
            vec![Fix::Kernel("iommu=pt".into())],
        )
    })
}

fn driver(machine: &Machine, lack: State) -> Finding {
    const NAME: &str = "vfio-pci";
    if machine.exists("/sys/bus/pci/drivers/vfio-pci") {
        return Finding::ok(NAME, "loaded");
    }
    Finding::new(
        NAME,
        lack,
        "not loaded",
        "it is what hands a card to a program",
        vec![
            Fix::Line { file: "/etc/modules-load.d/duckpond.conf", line: VFIO.into() },
            Fix::Run(format!("modprobe {VFIO}")),
        ],
    )
}

fn card(machine: &Machine, wanted: &Wanted, name: &str, pci: PciAddress) -> Finding {
    const NAME: &str = "card";
    let address = pci.to_string();
    let Some(id) = id(machine, &address) else {
        let cards = network_cards(machine);
        let cards = if cards.is_empty() { "none".to_owned() } else { cards.join(", ") };
        return Finding::new(
            NAME,
            State::Missing,
            format!("{name}: no such device; network cards here: {cards}"),
            "the port's frames go through it",
            vec![Fix::Do(
                "name another card in the description, or look whether it is seated; lspci -D lists them".into(),
            )],
        );
    };
    let driver = driver_of(machine, &address);
    if driver.as_deref() == Some(VFIO) {
        return Finding::ok(NAME, format!("{name}: {id}, {VFIO}"));
    }
    let mut fixes = vec![Fix::Run(format!(
        "driverctl set-override {address} {VFIO} # Debian package driverctl; this card only, and for good"
    ))];
    // Of a card whose id the description names, all are to be taken from the start.
    if wanted.pond.is_some_and(|pond| pond.vfio_ids.contains(&id)) {
        fixes.push(Fix::Do(format!(
            "or have every card of the kind {id} taken from the start, by these lines and update-initramfs -u:"
        )));
        fixes.push(Fix::Line { file: "/etc/modprobe.d/duckpond.conf", line: format!("options {VFIO} ids={id}") });
        if let Some(driver) = &driver {
            fixes.push(Fix::Line {
                file: "/etc/modprobe.d/duckpond.conf",
                line: format!("softdep {driver} pre: {VFIO}"),
            });
        }
    }
    let has = driver.map_or("no driver".to_owned(), |driver| format!("driver {driver}"));
    Finding::new(
        NAME,
        State::Missing,
        format!("{name}: {id} has {has}, expected {VFIO}"),
        "DPDK drives the card itself, so the kernel must have given it away",
        fixes,
    )
}

/// What goes into a program's hands with the card, and whether this user may open it.
fn group(machine: &Machine, name: &str, pci: PciAddress) -> Vec<Finding> {
    let address = pci.to_string();
    let Some(group) = machine.link(&format!("{DEVICES}/{address}/iommu_group")) else { return Vec::new() };
    let mut findings = Vec::new();
    // Bridges may stay with the kernel: they move no data of their own.
    let harmless = |driver: &Option<String>| {
        driver.as_deref().is_none_or(|driver| [VFIO, "pci-stub", "pcieport"].contains(&driver))
    };
    let others: Vec<String> = machine
        .names(&format!("/sys/kernel/iommu_groups/{group}/devices"))
        .into_iter()
        .filter(|device| *device != address)
        .map(|device| (driver_of(machine, &device), device))
        .filter(|(driver, _)| !harmless(driver))
        .map(|(driver, device)| format!("{device} ({})", driver.unwrap_or_default()))
        .collect();
    if !others.is_empty() {
        findings.push(Finding::new(
            "iommu group",
            State::Missing,
            format!("{name}: group {group} also has {}", others.join(", ")),
            "a group is handed over as a whole, or not at all",
            vec![Fix::Do("give these to vfio-pci, too, or put the card into a slot with a group of its own".into())],
        ));
    }
    if driver_of(machine, &address).as_deref() == Some(VFIO) {
        findings.push(access(machine, name, &group));
    }
    findings
}

fn access(machine: &Machine, name: &str, group: &str) -> Finding {
    const NAME: &str = "access";
    const WHY: &str = "the program opens the group's file to reach the card";
    let user = machine.user();
    let files = ["/dev/vfio/vfio".to_owned(), format!("/dev/vfio/{group}")];
    let wrong: Vec<String> = files
        .iter()
        .filter_map(|file| match machine.may_use(file, &user) {
            Some(true) => None,
            Some(false) => Some(format!("{file} is not for this user")),
            None => Some(format!("there is no {file}")),
        })
        .collect();
    if wrong.is_empty() {
        return Finding::ok(NAME, format!("{name}: {} can be opened", files[1]));
    }
    Finding::new(
        NAME,
        State::Missing,
        format!("{name}: {}", wrong.join(", ")),
        WHY,
        vec![
            Fix::Line {
                file: "/etc/udev/rules.d/60-duckpond.rules",
                line: "SUBSYSTEM==\"vfio\", GROUP=\"duckpond\", MODE=\"0660\"".into(),
            },
            Fix::Run("groupadd --force --system duckpond && udevadm control --reload && udevadm trigger --subsystem-match=vfio".into()),
            Fix::Do("run duckpond as a member of the group duckpond, or as root".into()),
        ],
    )
}

/// Other cards that the description wants kept from the kernel.
fn kept(machine: &Machine, wanted: &Wanted) -> Vec<Finding> {
    let Some(pond) = wanted.pond else { return Vec::new() };
    let of_ports: Vec<String> = wanted.dpdk_cards().map(|(_, pci)| pci.to_string()).collect();
    let others = addresses(machine).into_iter().filter(|address| !of_ports.contains(address));
    let held = others.filter_map(|address| {
        let id = id(machine, &address).filter(|id| pond.vfio_ids.contains(id))?;
        let driver = driver_of(machine, &address).filter(|driver| driver != VFIO)?;
        Some(format!("{address} ({id}, {driver})"))
    });
    let held: Vec<String> = held.collect();
    if held.is_empty() {
        return Vec::new();
    }
    vec![Finding::new(
        "vfio_ids",
        State::Note,
        format!("no port's, and not with {VFIO}: {}", held.join(", ")),
        "the description keeps cards of these kinds from the kernel when the machine starts",
        Vec::new(),
    )]
}

fn package(machine: &Machine, lack: State) -> Finding {
    const NAME: &str = "ddp package";
    const WHY: &str = "an E810 starts in a safe mode with one queue without its package, and DPDK refuses it like that";
    let names: Vec<(&str, String)> =
        PACKAGES.iter().flat_map(|folder| machine.names(folder).into_iter().map(move |name| (*folder, name))).collect();
    let of_kind = |ending: &str| names.iter().find(|(_, name)| name.starts_with("ice") && name.ends_with(ending));
    if let Some((folder, name)) = of_kind(".pkg") {
        return Finding::ok(NAME, format!("{folder}/{name}"));
    }
    let packed = of_kind(".pkg.xz").or_else(|| of_kind(".pkg.zst"));
    let option = Fix::Do("in the configuration: services.duckpond.ddp.enable = true;".into());
    let Some((folder, name)) = packed else {
        let install =
            "apt-get install firmware-misc-nonfree # of Debian's non-free-firmware; linux-firmware has ice.pkg, too";
        let fix = if machine.is_nixos() { option } else { Fix::Run(install.into()) };
        return Finding::new(NAME, lack, format!("no ice.pkg in {}", PACKAGES[1]), WHY, vec![fix]);
    };
    let unpack = if name.ends_with(".xz") { "xz" } else { "zstd" };
    Finding::new(
        NAME,
        lack,
        format!("{folder}/{name} is compressed, which DPDK does not read"),
        WHY,
        vec![if machine.is_nixos() {
            option
        } else {
            Fix::Run(format!("{unpack} -dc {folder}/{name} > {folder}/ice.pkg"))
        }],
    )
}
