//! Descriptions nobody wrote: good ones with random changes, which `pond.nix` and the engine must take alike or refuse by the same field.

use nix_tests::{cases, engine_verdict, evaluate, nix_or_missing};
use serde_json::{Value, json};

const SEED: u64 = 0x6475_636b_706f_6e64;
const DESCRIPTIONS: usize = 600;

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn of<'v, T>(&mut self, values: &'v [T]) -> &'v T {
        &values[self.below(values.len())]
    }
}

/// Every place in a tree, as the keys that lead there.
fn places(value: &Value, here: &str, found: &mut Vec<String>) {
    found.push(here.to_owned());
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(k, item)| places(item, &format!("{here}/{k}"), found));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| places(field, &format!("{here}/{name}"), found))
        }
        _ => {}
    }
}

/// Values that are right somewhere and wrong elsewhere.
fn pool() -> Vec<Value> {
    let texts = [
        "",
        "a",
        "a b",
        "east",
        "port0",
        "seventeen-letters",
        "é",
        "a\nb",
        ".",
        "/x",
        "x",
        "2MiB",
        "1GiB",
        "4KiB",
        "0",
        "0GiB",
        "17179869184GiB",
        "18446744073709551615",
        "18446744073709551616",
        "1 GiB",
        "1\tGiB",
        "1gib",
        "-1",
        "10.21.1.0/24",
        "10.21.2.0/25",
        "10.0.0.0/8",
        "10.0.0.0/7",
        "10.0.0.0/31",
        "10.0.0.0/+8",
        "0.0.0.0/8",
        "223.255.255.252/30",
        "10.21.1.1",
        "10.21.1.11",
        "10.21.1.0",
        "10.21.1.255",
        "10.21.1.256",
        "10.21.1.01",
        "02:00:00:00:01:01",
        "02:00:00:00:0A:01",
        "02:00:00:00:0a:01",
        "03:00:00:00:00:01",
        "00:00:00:00:00:00",
        "2:0:0:0:0:1",
        "eth:enp3s0",
        "eth:a/b",
        "eth:..",
        "eth:fifteen-letters",
        "eth:sixteen-letters.",
        "eth:é",
        "udp:127.0.0.1:7000",
        "udp:",
        "udp:é",
        "dpdk:0000:01:00.0",
        "dpdk:0000:af:00.0",
        "dpdk:0000:AF:00.0",
        "dpdk:net_x",
        "dpdk:net",
        "dpdk:0000:01:20.0",
        "0000:01:00.0",
        "0000:01:00.1",
        "0000:AF:00.0",
        "0000:af:00.0",
        "8086:1593",
        "8086:10fb",
        "8086:10FB",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        "sha256-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ];
    let numbers = [
        -1,
        0,
        1,
        2,
        3,
        4,
        9,
        10,
        512,
        1023,
        1024,
        1499,
        1500,
        9600,
        9601,
        65_535,
        65_536,
        1 << 21,
        1 << 30,
        4_294_967_295,
        4_294_967_296,
        i64::MAX,
    ];
    let others = [json!(null), json!(true), json!(2.5), json!([]), json!({}), json!([2, 4]), json!([null])];
    texts.iter().map(|text| json!(text)).chain(numbers.map(|number| json!(number))).chain(others).collect()
}

/// Names of fields, and some that none has.
const FIELDS: [&str; 27] = [
    "name",
    "model",
    "key",
    "kernels",
    "kernels_hash",
    "nest_hash",
    "netboot",
    "public_key",
    "isolated",
    "vfio_ids",
    "huge_pages",
    "ports",
    "ducks",
    "size",
    "count",
    "mount",
    "link",
    "pci",
    "lcore",
    "subnet",
    "address",
    "mtu",
    "mac",
    "memory",
    "vlan",
    "7",
    "a b",
];

/// One change somewhere.
fn change(description: &mut Value, random: &mut Random, pool: &[Value]) {
    let mut found = Vec::new();
    places(description, "", &mut found);
    let place = random.of(&found).clone();
    let donor = description.pointer(random.of::<String>(&found)).expect("it was found").clone();
    // A value of a field of the same name, so that things are there twice.
    let name = place.rsplit('/').next().unwrap_or_default().to_owned();
    let alike: Vec<_> = found.iter().filter(|other| other.rsplit('/').next() == Some(&name)).collect();
    let alike = description.pointer(random.of::<&String>(&alike)).expect("it was found").clone();
    let value = description.pointer_mut(&place).expect("it was found");
    match (random.below(8), value) {
        (0, value) => *value = donor,
        (1 | 2, value) => *value = alike,
        (3, Value::Object(fields)) => {
            let name = random.of(&FIELDS);
            fields.insert((*name).to_owned(), random.of(pool).clone());
        }
        (4, Value::Object(fields)) => {
            let names: Vec<_> = fields.keys().cloned().collect();
            fields.remove(names.get(random.below(names.len())).map_or("", |name| name));
        }
        (3, Value::Array(items)) if !items.is_empty() => items.push(random.of(&items.clone()).clone()),
        (4, Value::Array(items)) if !items.is_empty() => {
            items.remove(random.below(items.len()));
        }
        (5, Value::Array(items)) if !items.is_empty() => {
            let (a, b) = (random.below(items.len()), random.below(items.len()));
            items.swap(a, b);
        }
        (3..=5, Value::String(text)) => {
            let mut letters: Vec<char> = text.chars().collect();
            let at = random.below(letters.len());
            let letter = *random.of(&['0', '1', '9', 'a', 'F', 'g', ':', '.', '/', '-', ' ', 'é', '\n', '~']);
            match letters.get_mut(at) {
                Some(old) if random.below(2) == 0 => *old = letter,
                _ => letters.insert(at, letter),
            }
            *text = letters.into_iter().collect();
        }
        (3..=5, Value::Number(number)) => {
            let near = number.as_i64().unwrap_or(0).saturating_add(random.below(3) as i64 - 1);
            *number = near.into();
        }
        (_, value) => *value = random.of(pool).clone(),
    }
}

#[test]
fn a_changed_description_gets_the_same_verdict_from_nix_and_the_engine() {
    if !nix_or_missing("Verdicts of pond.nix on random descriptions are") {
        return;
    }
    let bases: Vec<_> = cases().into_iter().filter(|case| case.field.is_none()).collect();
    let (mut random, pool) = (Random(SEED), pool());
    let descriptions: Vec<Value> = (0..DESCRIPTIONS)
        .map(|_| {
            let mut description = random.of(&bases).description.clone();
            for _ in 0..=random.below(3) {
                change(&mut description, &mut random, &pool);
            }
            description
        })
        // What is no object at all is no JSON description to the engine, but a mistake in TOML.
        .filter(Value::is_object)
        .collect();
    let expression = r#"map (import (repository + "/nixos-modules/pond.nix")).check input"#;
    let verdicts = evaluate(expression, &json!(descriptions)).unwrap_or_else(|error| panic!("{error}"));
    let mut fields = std::collections::BTreeSet::new();
    let mut taken = 0;
    let mut wrong = Vec::new();
    for (number, (description, nix)) in descriptions.iter().zip(verdicts.as_array().expect("a list")).enumerate() {
        let engine = engine_verdict(description);
        let field = engine.as_ref().map(|(field, _)| field.as_str());
        match field {
            None => taken += 1,
            Some(field) => drop(fields.insert(field.replace(|c: char| c.is_ascii_digit(), ""))),
        }
        if field != nix["field"].as_str() {
            wrong.push(format!("description {number}: the engine says {engine:?}, Nix {nix}: {description}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ, seed {SEED:#x}; the first:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
    // The changes are worth something: many rules are met, and not all is refused.
    assert!(taken > DESCRIPTIONS / 20 && fields.len() > 25, "{taken} taken, refused for {fields:?}");
}
