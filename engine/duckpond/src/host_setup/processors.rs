//! Instructions, processors that are kept for ports, and their clocks.

use super::Wanted;
use super::machine::{Machine, Processors, list};
use super::report::{Finding, Fix, State};

const CPUS: &str = "/sys/devices/system/cpu";

/// Looks at all of it.
pub fn check(machine: &Machine, wanted: &Wanted, findings: &mut Vec<Finding>) {
    findings.push(instructions(machine));
    let named = named(wanted);
    let online = machine.processors(&format!("{CPUS}/online"));
    if !named.is_empty() {
        let present = present(&named, &online);
        let all = present.state == State::Ok;
        findings.push(present);
        // Whether others are kept free is no question before the right ones are named.
        if all {
            let kept = isolated(machine, &named, findings);
            findings.extend(siblings(machine, &named, &kept));
        }
    }
    let clocked = if named.is_empty() { &online } else { &named };
    findings.push(governor(machine, clocked));
}

/// Processors that the description names.
fn named(wanted: &Wanted) -> Processors {
    let isolated = wanted.pond.and_then(|pond| pond.isolated.as_ref()).into_iter().flatten().copied();
    isolated.chain(wanted.ports().iter().filter_map(|port| port.lcore)).collect()
}

/// The kernels ask for AVX2 and FMA; whatever else of that age is missing tells of a virtual machine that hides what its processor has.
fn instructions(machine: &Machine) -> Finding {
    let flags = machine.field("/proc/cpuinfo", "flags").unwrap_or_default();
    let lacks: Vec<&str> =
        ["avx2", "fma", "f16c"].into_iter().filter(|flag| !flags.split(' ').any(|found| found == *flag)).collect();
    if lacks.is_empty() {
        return Finding::ok("instructions", "avx2, fma, f16c");
    }
    Finding::new(
        "instructions",
        State::Warning,
        format!("without {}", lacks.join(", ")),
        "the host computes several times slower without them; results are the same",
        vec![Fix::Do("in a virtual machine, pass the processor through (QEMU: -cpu host)".into())],
    )
}

fn present(named: &Processors, online: &Processors) -> Finding {
    let absent: Processors = named.difference(online).copied().collect();
    if absent.is_empty() {
        return Finding::ok("processors", format!("{} of {} are the pond's", list(named), list(online)));
    }
    Finding::new(
        "processors",
        State::Missing,
        format!("there is no processor {}; there are {}", list(&absent), list(online)),
        "a port's thread is bound to its processor",
        vec![Fix::Do("name others as lcore and isolated in the description; lscpu -e shows which share a core".into())],
    )
}

/// Threads of the same cores, themselves included.
fn with_siblings(machine: &Machine, named: &Processors) -> Processors {
    let of = |processor: &u16| machine.processors(&format!("{CPUS}/cpu{processor}/topology/thread_siblings_list"));
    named.iter().flat_map(of).chain(named.iter().copied()).collect()
}

/// The parameters that keep these processors free, and those that stand in their way.
fn isolate(machine: &Machine, processors: &Processors) -> Vec<Fix> {
    let all = list(processors);
    let mut fixes: Vec<Fix> = Vec::new();
    let mut words: Vec<String> = Vec::new();
    for name in ["isolcpus", "nohz_full", "rcu_nocbs"] {
        let values = machine.parameters(name);
        if values.iter().all(|value| *value != all) {
            words.push(format!("{name}={all}"));
        }
        fixes.extend(values.iter().filter(|value| **value != all).map(|value| {
            Fix::Do(format!("take {name}={value} off the kernel's command line: it would stand beside the new one"))
        }));
    }
    fixes.push(match words.is_empty() {
        true => Fix::Do("start a kernel with CONFIG_CPU_ISOLATION and CONFIG_NO_HZ_FULL: this one ignores them".into()),
        false => Fix::Kernel(words.join(" ")),
    });
    fixes
}

/// Returns the processors that the scheduler leaves alone.
fn isolated(machine: &Machine, named: &Processors, findings: &mut Vec<Finding>) -> Processors {
    let kept = machine.processors(&format!("{CPUS}/isolated"));
    let tickless = machine.processors(&format!("{CPUS}/nohz_full"));
    // Processors without a tick do without callbacks, too.
    let mut quiet: Processors = tickless.clone();
    for value in machine.parameters("rcu_nocbs") {
        quiet.extend(super::machine::processors(&value));
    }
    let lacks = |has: &Processors| list(&named.difference(has).copied().collect());
    let all = [("isolcpus", lacks(&kept)), ("nohz_full", lacks(&tickless)), ("rcu_nocbs", lacks(&quiet))];
    let wrong: Vec<String> =
        all.iter().filter(|(_, lack)| !lack.is_empty()).map(|(name, lack)| format!("{name} lacks {lack}")).collect();
    findings.push(match wrong.is_empty() {
        true => Finding::ok("isolated processors", list(named)),
        false => Finding::new(
            "isolated processors",
            State::Warning,
            wrong.join("; "),
            "a port's thread that the kernel interrupts or moves answers milliseconds late, and all ducks wait for it",
            isolate(machine, &with_siblings(machine, named)),
        ),
    });
    kept
}

fn siblings(machine: &Machine, named: &Processors, kept: &Processors) -> Option<Finding> {
    let others: Processors = with_siblings(machine, named).difference(named).copied().collect();
    if others.is_empty() {
        return None;
    }
    let busy: Processors = others.difference(kept).copied().collect();
    if busy.is_empty() {
        return Some(Finding::ok("their siblings", format!("{} are isolated, too", list(&others))));
    }
    Some(Finding::new(
        "their siblings",
        State::Warning,
        format!("{} share cores with them and are not isolated", list(&busy)),
        "whatever runs on the other thread of a core takes half of it from the port",
        isolate(machine, &with_siblings(machine, named)),
    ))
}

fn governor(machine: &Machine, processors: &Processors) -> Finding {
    const NAME: &str = "governor";
    let mut others: Vec<(String, Processors)> = Vec::new();
    let mut known = Processors::new();
    for &processor in processors {
        let Some(governor) = machine.text(&format!("{CPUS}/cpu{processor}/cpufreq/scaling_governor")) else { continue };
        known.insert(processor);
        if governor == "performance" {
            continue;
        }
        match others.iter_mut().find(|(name, _)| *name == governor) {
            Some((_, of)) => {
                of.insert(processor);
            }
            None => others.push((governor, Processors::from([processor]))),
        }
    }
    if known.is_empty() {
        return Finding::ok(NAME, "the kernel does not set clock rates here");
    }
    if others.is_empty() {
        return Finding::ok(NAME, format!("performance on {}", list(&known)));
    }
    let shown: Vec<String> = others.iter().map(|(name, of)| format!("{name} on {}", list(of))).collect();
    Finding::new(
        NAME,
        State::Warning,
        format!("{}, expected performance", shown.join("; ")),
        "a step is shorter than the time in which a processor raises its clock again",
        vec![
            Fix::Run("cpupower frequency-set --governor performance # Debian package linux-cpupower".into()),
            Fix::Kernel("cpufreq.default_governor=performance".into()),
        ],
    )
}
