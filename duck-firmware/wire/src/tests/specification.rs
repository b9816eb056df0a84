//! The README is the specification: its tables must say what the code does.

use std::collections::{BTreeMap, BTreeSet};
use std::string::{String, ToString};
use std::vec::Vec;

use crate::{body, duck, frame, frozen, host, limits, list, message};

const README: &str = include_str!("../../README.md");

fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches("| ").trim_end_matches('|');
    inner.split(" | ").map(|c| c.trim().trim_matches('`').to_string()).collect()
}

/// The table rows below a heading.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let start =
        README.find(&std::format!("#### {heading}\n")).unwrap_or_else(|| panic!("README: no section {heading:?}"));
    let lines = README[start..].lines().skip_while(|l| !l.starts_with("|---")).skip(1);
    lines.take_while(|l| l.starts_with('|')).map(cells).collect()
}

fn check_layout(name: &str, len: usize, fields: &[(&str, usize, usize)]) {
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let row = |r: &Vec<String>| (r[2].clone(), number(&r[0]), number(&r[1]));
    let found: Vec<_> = rows(&std::format!("{name}, {len} bytes")).iter().map(row).collect();
    let expected: Vec<_> = fields.iter().map(|&(f, at, n)| (f.to_string(), at, n)).collect();
    assert_eq!(found, expected, "{name}");
}

fn check_codes(name: &str, expected: &[(&str, u8)]) {
    let row = |r: &Vec<String>| (r[1].clone(), r[0].parse::<u8>().expect("a code"));
    let found: Vec<_> = rows(name).iter().map(row).collect();
    let expected: Vec<_> = expected.iter().map(|&(n, c)| (n.to_string(), c)).collect();
    assert_eq!(found, expected, "{name}");
}

#[test]
fn layouts_are_as_specified() {
    macro_rules! all {
        ($($name:ident in $module:ident),* $(,)?) => {{
            $(check_layout(stringify!($name), $module::$name::LEN, $module::$name::FIELDS);)*
            [$(stringify!($name)),*].len()
        }};
    }
    let checked = all!(
        Header in frame, Announce in frozen, Reset in frozen, Open in message, Opened in message, Written in message,
        Assigned in message, Verdict in message, Status in message, Resident in message, Log in message, Entry in list,
        Head in body,
    );
    let described = README.lines().filter(|l| l.starts_with("#### ") && l.ends_with(" bytes")).count();
    assert_eq!(described, checked);
}

#[test]
fn codes_are_as_specified() {
    macro_rules! all {
        ($($name:ident),*) => {$(
            check_codes(stringify!($name), message::$name::ALL);
            assert!(message::$name::ALL.iter().all(|&(_, c)| message::$name::from_code(c).map(|k| k as u8) == Some(c)));
        )*};
    }
    all!(OpenCode, BlockCode, AssignCode, VerdictCode, Counter);
    let names: Vec<String> = frame::Kind::ALL.iter().map(|k| std::format!("{k:?}")).collect();
    let kinds: Vec<_> = names.iter().zip(frame::Kind::ALL).map(|(n, &k)| (n.as_str(), k as u8)).collect();
    check_codes("Kind", &kinds);
    for name in names {
        let names_it = |l: &str| cells(l)[0].split("`, `").any(|k| k == name);
        let uses =
            README.lines().filter(|l| l.starts_with("| `") && l.matches('|').count() == 8 && names_it(l)).count();
        assert_eq!(uses, 1, "{name}: a line says how it uses the header");
    }
}

#[test]
fn bounds_are_as_specified() {
    macro_rules! values {
        ($($module:ident: $($name:ident)*;)*) => {
            BTreeMap::from([$($((
                std::format!("{}::{}", stringify!($module), stringify!($name)),
                u64::try_from($module::$name).expect("not negative"),
            ),)*)*])
        };
    }
    let expected = values! {
        frame: ETHERTYPE VERSION MAX_FRAME MIN_MTU;
        limits: MAX_HIDDEN MAX_NODES INPUT_FRAGMENTS RESULT_FRAGMENTS MAX_PARTS ROW_GROUP CHUNK_GRAIN MIN_CHUNK MAX_CHUNK;
        list: MAX_BLOCKS LIST PROGRAM_LAYER;
        message: COUNTERS RESIDENT_PAGE LOG_TEXT;
        frozen: VERSION NONCE ID FEATURE_AVX2 FEATURE_AVX_VNNI FEATURE_HUGE_PAGES FEATURE_LOCKED FEATURE_ISOLATED;
        duck: STEPS PLANS LOADS WINDOW ACK_EVERY ACK_DELAY LOAD_IDLE ANNOUNCE_EVERY ANNOUNCE_GAP VERIFY_GAP PROBES LOG_LINES;
        host: PROBE_TRIES PROBE_WAIT OPEN_TRIES RETRY_FIRST RETRY_MOST SEARCH_MOST RESET_TRIES REFUSED_RETRY PING_EVERY
            PING_RETRY ASK_FIRST ASK_MOST ASK_SOON ASKS_LEAST STUCK_GRACE IN_FLIGHT IN_FLIGHT_CAUTIOUS REORDER
            LOAD_RETRY_FIRST LOAD_RETRY_MOST LOAD_BURST LOG_LINES DEADLINE_UNKNOWN MARGIN_LEAST DEADLINE_MOST;
    };
    let bounds = README[README.find("## Bounds").expect("a section of bounds")..].lines();
    let value = |r: &Vec<String>| r[1].parse().unwrap_or_else(|_| panic!("README: {} has value {:?}", r[0], r[1]));
    let found: BTreeMap<String, u64> =
        bounds.filter(|l| l.starts_with("| `")).map(cells).map(|r| (r[0].clone(), value(&r))).collect();
    assert_eq!(found, expected);
}

#[test]
fn probe_sizes_magic_and_prefixes_are_as_specified() {
    let sizes: Vec<String> = host::PROBE_SIZES.iter().map(ToString::to_string).collect();
    assert!(README.contains(&sizes.join(", ")));
    assert!(README.contains("The magic is \"DP\"") && frame::MAGIC == *b"DP");
    for domain in [crate::key::Domain::Open, crate::key::Domain::Reset, crate::key::Domain::Program] {
        assert!(README.contains(&std::format!("`{}`", String::from_utf8_lossy(domain.prefix()))), "{domain:?}");
    }
}

#[test]
fn every_public_bound_is_specified() {
    let sources = [
        include_str!("../duck/mod.rs"),
        include_str!("../host/mod.rs"),
        include_str!("../host/pace.rs"),
        include_str!("../limits.rs"),
        include_str!("../frame.rs"),
        include_str!("../list.rs"),
        include_str!("../message.rs"),
    ];
    let constants =
        sources.iter().flat_map(|s| s.split("\npub const ").skip(1)).filter_map(|rest| rest.split(':').next());
    let elsewhere = ["MAGIC", "HEADER", "PROBE_SIZES"];
    let names: BTreeSet<&str> = constants.filter(|n| !n.starts_with("fn ") && !elsewhere.contains(n)).collect();
    let missing: Vec<_> = names.iter().filter(|n| !README.contains(&std::format!("::{n}`"))).collect();
    assert!(names.len() > 40 && missing.is_empty(), "{missing:?}");
}
