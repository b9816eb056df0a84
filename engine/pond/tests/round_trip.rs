//! Descriptions nobody thought of: whatever is consistent is written and read back the same, and whatever is read does not panic.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use pond::{Duck, HugePages, Link, Mac, Pond, Port, Size, VfioId};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use wire::key::PublicKey;

/// A port and its ducks, of whom everything that must be unique follows from `number`.
fn port(number: u8) -> impl Strategy<Value = (Port, Vec<Duck>)> {
    let link = prop_oneof![
        Just(format!("dpdk:0000:{number:02x}:00.0")),
        Just(format!("eth:lan{number}")),
        "[!-~]{1,40}".prop_map(move |target| format!("udp:{number}{target}")),
    ];
    let link = link.prop_map(|text| text.parse::<Link>().expect("a link"));
    let ducks = vec((any::<bool>(), any::<bool>(), of(1..u64::MAX), 10..=65_535u32), 1..5);
    (link, any::<bool>(), of(0..=1u8), of(1500..=9600u32), any::<bool>(), ducks).prop_map(
        move |(link, subnet, address, mtu, lcore, ducks)| {
            let name = format!("p{number}");
            let at = |host: u8| Ipv4Addr::new(10, number, 0, host);
            let ducks = ducks.into_iter().enumerate().map(|(k, (mac, given, memory, link))| Duck {
                mac: (mac || given).then_some(Mac([2, 0, 0, 0, number, k as u8])),
                address: (subnet && given).then(|| at(10 + k as u8)),
                memory: memory.map(Size),
                link,
                ..Duck::new(format!("d{number}-{k}"), &name)
            });
            let port = Port {
                lcore: lcore.then_some(u16::from(number)),
                subnet: subnet.then(|| format!("10.{number}.0.0/24").parse().expect("a subnet")),
                address: address.filter(|_| subnet).map(|k| at(1 + k)),
                mtu,
                ..Port::new(&name, link)
            };
            (port, ducks.collect())
        },
    )
}

fn pond() -> impl Strategy<Value = Pond> {
    let ports = (1..5u8).prop_flat_map(|n| (0..n).map(port).collect::<Vec<_>>());
    let path = "[ -~äß\\t\\n\"']{1,30}".prop_map(PathBuf::from);
    let pages = (prop_oneof![Just(2u64 << 20), Just(1 << 30)], 1..=1000u32, of("/[a-z]{0,9}".prop_map(PathBuf::from)));
    let pages = pages.prop_map(|(size, count, mount)| HugePages { size: Size(size), count, mount });
    let ids = of((any::<u16>(), any::<u16>()).prop_map(|(vendor, device)| VfioId { vendor, device }));
    let rest = (of(path.clone()), of(path), of(any::<[u8; 32]>()), any::<bool>(), ids, of(pages));
    ("[A-Za-z0-9._-]{1,64}", ports, rest).prop_map(|(name, ports, (model, key, public, isolated, id, pages))| {
        let mut pond = Pond::new(name);
        for (port, ducks) in ports {
            pond.ports.push(port);
            pond.ducks.extend(ducks);
        }
        (pond.model, pond.key, pond.huge_pages) = (model, key, pages);
        pond.public_key = public.map(PublicKey);
        pond.isolated = isolated.then(|| (0..8).collect());
        pond.vfio_ids = id.into_iter().collect();
        pond
    })
}

proptest! {
    #[test]
    fn a_consistent_pond_comes_back_the_same_from_both_languages(pond in pond()) {
        prop_assert_eq!(pond.check().map_err(|error| error.to_string()), Ok(()));
        let toml = pond.to_toml().expect("all paths are UTF-8");
        prop_assert_eq!(Pond::from_toml(&toml).map_err(|error| error.to_string()), Ok(pond.clone()));
        let json = serde_json::to_string(&pond).expect("is written");
        prop_assert_eq!(Pond::from_json(&json).map_err(|error| error.to_string()), Ok(pond));
    }

    #[test]
    fn any_two_ducks_of_one_address_are_refused_at_the_second(pond in pond(), one: prop::sample::Index, two: prop::sample::Index) {
        let mut pond = pond;
        let (one, two) = (one.index(pond.ducks.len()), two.index(pond.ducks.len()));
        prop_assume!(one < two);
        let mac = Mac([2, 0, 0, 0, 99, 99]);
        (pond.ducks[one].mac, pond.ducks[two].mac) = (Some(mac), Some(mac));
        let error = pond.check().expect_err("twice");
        prop_assert_eq!(error.field(), format!("ducks[{two}].mac"));
        let end = format!("is already ducks[{one}].mac");
        prop_assert!(error.to_string().ends_with(&end));
    }

    #[test]
    fn a_spoilt_text_is_refused_or_read_and_never_more(pond in pond(), at: prop::sample::Index, with in any::<char>()) {
        let text = pond.to_toml().expect("all paths are UTF-8");
        let at = at.index(text.len());
        let at = (0..=at).rev().find(|&at| text.is_char_boundary(at)).expect("the beginning is one");
        let rest = text[at..].chars().next().map_or(0, char::len_utf8);
        let spoilt = format!("{}{with}{}", &text[..at], &text[at + rest..]);
        match Pond::from_toml(&spoilt).and_then(|pond| pond.check().map(|()| pond)) {
            Ok(read) => prop_assert_eq!(Pond::from_toml(&read.to_toml().expect("UTF-8")).ok(), Some(read)),
            Err(error) => prop_assert!(!error.to_string().contains('\n')),
        }
    }
}
