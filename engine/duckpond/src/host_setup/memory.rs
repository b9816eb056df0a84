//! Huge pages, their file system, memory, and how much of it may be locked.

use pond::HugePages;

use super::machine::{CAP_IPC_LOCK, Machine};
use super::report::{Finding, Fix, State};
use super::{Wanted, Weights};
use crate::format::bytes;

/// Looks at all of it.
pub fn check(machine: &Machine, wanted: &Wanted, findings: &mut Vec<Finding>) {
    let pages = wanted.pond.and_then(|pond| pond.huge_pages.as_ref());
    match pages {
        Some(pages) => {
            // Whoever describes them wants them, even if no port needs them yet.
            findings.push(huge_pages(machine, pages));
            findings.push(mount(machine, pages));
        }
        None => findings.extend(no_huge_pages(machine, wanted)),
    }
    findings.push(free(machine, pages, wanted.weights.as_ref()));
    findings.extend(locked(machine, wanted, pages.map_or(0, size)));
    findings.extend(transparent(machine));
}

/// Bytes of all pages.
fn size(pages: &HugePages) -> u64 {
    pages.size.0.saturating_mul(pages.count.into())
}

/// Pages of that size that are set aside; `None` where the processor or the kernel has none of the size.
fn set_aside(machine: &Machine, page: u64) -> Option<u64> {
    machine.number(&format!("/sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages", page >> 10))
}

/// A page's size as the kernel's command line and mounts have it.
fn unit(page: u64) -> String {
    if page.is_multiple_of(1 << 30) { format!("{}G", page >> 30) } else { format!("{}M", page >> 20) }
}

fn parameters(pages: &HugePages) -> Fix {
    let (unit, count) = (unit(pages.size.0), pages.count);
    Fix::Kernel(format!("default_hugepagesz={unit} hugepagesz={unit} hugepages={count}"))
}

fn huge_pages(machine: &Machine, pages: &HugePages) -> Finding {
    const NAME: &str = "huge pages";
    const WHY: &str = "DPDK keeps frames in them: a card needs memory that stays where it is";
    let HugePages { size: page, count, .. } = pages;
    let Some(found) = set_aside(machine, page.0) else {
        let halves = size(pages) >> 21;
        let smaller = format!("write size = \"2MiB\" and count = {halves} in the description's huge_pages");
        return Finding::new(
            NAME,
            State::Missing,
            format!("there are no pages of {page} here"),
            WHY,
            vec![Fix::Do(smaller)],
        );
    };
    if found >= u64::from(*count) {
        return Finding::ok(NAME, format!("{found} of {page}, {count} expected"));
    }
    let usual = machine.memory("Hugepagesize");
    let fixes = match usual == Some(page.0) && page.0 < 1 << 30 {
        // Small ones can still be had later.
        true => vec![
            Fix::Line { file: "/etc/sysctl.d/60-duckpond.conf", line: format!("vm.nr_hugepages = {count}") },
            Fix::Run("sysctl --system".into()),
        ],
        false => vec![parameters(pages)],
    };
    Finding::new(NAME, State::Missing, format!("{found} of {page}, {count} expected"), WHY, fixes)
}

/// The description sets none aside.
fn no_huge_pages(machine: &Machine, wanted: &Wanted) -> Option<Finding> {
    let state = wanted.for_dpdk()?;
    let sizes = [1u64 << 30, 2 << 20].map(|page| (page, set_aside(machine, page).unwrap_or(0)));
    let there: Vec<String> = sizes
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(page, count)| format!("{count} of {}", pond::Size(*page)))
        .collect();
    let found = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
    if state == State::Note && !there.is_empty() {
        return Some(Finding::ok("huge pages", found));
    }
    Some(Finding::new(
        "huge pages",
        state,
        match state {
            State::Note => found,
            _ => format!("{found}; the description says nothing of them"),
        },
        "ports on DPDK keep frames in them, and only so many as are described are set aside",
        vec![Fix::Do("add huge_pages to the description, such as [huge_pages] size = \"1GiB\", count = 2".into())],
    ))
}

fn mount(machine: &Machine, pages: &HugePages) -> Finding {
    const NAME: &str = "huge pages' mount";
    let mounts = machine.text("/proc/mounts").unwrap_or_default();
    let usual = machine.memory("Hugepagesize");
    // Where, and of which size: as in `pagesize=1024M`.
    let all: Vec<(&str, Option<u64>)> = mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (_, place, kind, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
            let stated = options.split(',').find_map(|option| option.strip_prefix("pagesize="));
            (kind == "hugetlbfs").then(|| (place, stated.map_or(usual, mounted_size)))
        })
        .collect();
    let place = pages.mount.as_ref().map(|path| path.display().to_string());
    let fits = |(at, size): &&(&str, Option<u64>)| {
        *size == Some(pages.size.0) && place.as_ref().is_none_or(|place| place == at)
    };
    if let Some((at, _)) = all.iter().find(fits) {
        return Finding::ok(NAME, format!("{at}, pages of {}", pages.size));
    }
    let others: Vec<String> = all
        .iter()
        .map(|(at, size)| {
            format!("{at}, pages of {}", size.map_or("?".to_owned(), |size| pond::Size(size).to_string()))
        })
        .collect();
    let others = if others.is_empty() { "none".to_owned() } else { others.join("; ") };
    let at = place.unwrap_or_else(|| format!("/dev/hugepages{}", unit(pages.size.0)));
    let options = format!("pagesize={},mode=0770", unit(pages.size.0));
    Finding::new(
        NAME,
        State::Missing,
        format!("nothing at {at} with pages of {}; mounted: {others}", pages.size),
        "huge pages are had as files",
        vec![
            Fix::Line { file: "/etc/fstab", line: format!("hugetlbfs {at} hugetlbfs {options} 0 0") },
            Fix::Run(format!("mkdir -p {at} && mount {at}")),
        ],
    )
}

fn mounted_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match &text[digits.len()..] {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << power)
}

/// Against what pages and weights take.
fn free(machine: &Machine, pages: Option<&HugePages>, weights: Option<&Weights>) -> Finding {
    const NAME: &str = "memory";
    let (Some(total), Some(available)) = (machine.memory("MemTotal"), machine.memory("MemAvailable")) else {
        return Finding::new(NAME, State::Note, "the kernel does not say how much there is", "", Vec::new());
    };
    let pages_wanted = pages.map_or(0, size);
    if pages_wanted > total {
        return Finding::new(
            NAME,
            State::Missing,
            format!("{} in all, but the huge pages of the description are {}", bytes(total), bytes(pages_wanted)),
            "they are set aside when the machine starts, or not at all",
            vec![Fix::Do("describe fewer huge pages, or put in more memory".into())],
        );
    }
    // Those that are set aside already are not available any more.
    let there = pages.and_then(|pages| Some(set_aside(machine, pages.size.0)?.saturating_mul(pages.size.0)));
    let needed = pages_wanted.saturating_sub(there.unwrap_or(0));
    let Some(weights) = weights else {
        return Finding::ok(NAME, format!("{} of {} available", bytes(available), bytes(total)));
    };
    let needed = needed.saturating_add(weights.bytes);
    if needed <= available {
        return Finding::ok(
            NAME,
            format!(
                "{} of {} available, {} needed for {}",
                bytes(available),
                bytes(total),
                bytes(needed),
                weights.folder.display()
            ),
        );
    }
    Finding::new(
        NAME,
        State::Warning,
        format!(
            "{} of {} available, {} needed for {}",
            bytes(available),
            bytes(total),
            bytes(needed),
            weights.folder.display()
        ),
        "the host's weights are read for every token; what does not stay in memory is read from the disc again",
        vec![Fix::Do(
            "end what else takes memory; convert a model by duckpond convert, so that the host reads its own part only"
                .into(),
        )],
    )
}

fn locked(machine: &Machine, wanted: &Wanted, needed: u64) -> Option<Finding> {
    const NAME: &str = "locked memory";
    let state = wanted.for_dpdk()?;
    if machine.user().may(CAP_IPC_LOCK) {
        return Some(Finding::ok(NAME, "no limit for this user (CAP_IPC_LOCK)"));
    }
    let limits = machine.text("/proc/self/limits").unwrap_or_default();
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")?.split_whitespace().next());
    let limit = match soft {
        Some("unlimited") => return Some(Finding::ok(NAME, "no limit")),
        Some(text) => text.parse::<u64>().ok(),
        None => None,
    };
    if limit.is_some_and(|limit| limit >= needed && needed > 0) {
        return Some(Finding::ok(NAME, format!("{} allowed, {} needed", bytes(limit.unwrap_or(0)), bytes(needed))));
    }
    Some(Finding::new(
        NAME,
        state,
        format!("{} allowed, expected no limit", limit.map_or("an unknown amount".to_owned(), bytes)),
        "the kernel counts memory that a card may reach through vfio as locked, and refuses more than this",
        vec![
            Fix::Line { file: "/etc/security/limits.d/60-duckpond.conf", line: "* - memlock unlimited".into() },
            Fix::Do("log in anew; a service has LimitMEMLOCK=infinity in its unit instead".into()),
        ],
    ))
}

fn transparent(machine: &Machine) -> Option<Finding> {
    const NAME: &str = "transparent pages";
    let modes = machine.text("/sys/kernel/mm/transparent_hugepage/enabled")?;
    let chosen = modes.split(' ').find_map(|mode| mode.strip_prefix('[')?.strip_suffix(']')).unwrap_or("unknown");
    if chosen != "never" {
        return Some(Finding::ok(NAME, chosen));
    }
    Some(Finding::new(
        NAME,
        State::Warning,
        "never, expected madvise or always",
        "ducks on this machine ask for large pages for their weights; in small ones the processor looks up addresses more often",
        vec![
            Fix::Run("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled".into()),
            Fix::Kernel("transparent_hugepage=madvise".into()),
        ],
    ))
}
