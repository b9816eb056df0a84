//! DHCP, ARP and ping, frame by frame.

mod common;

use std::net::Ipv4Addr;

use boot::{Config, ConfigError, Lease, Mac, Service};
use common::{Bench, DUCK, DUCK_IP, SERVER, SERVER_IP, config, dhcp, options, read};
use link::{BROADCAST, ETHERNET};

const STRANGER: Mac = Mac([2, 0, 0, 0, 9, 9]);
const DISCOVER: u8 = 1;
const REQUEST: u8 = 3;
const INFORM: u8 = 8;

fn value(options: &[(u8, Vec<u8>)], kind: u8) -> Option<&[u8]> {
    options.iter().find(|option| option.0 == kind).map(|option| &option.1[..])
}

#[test]
fn a_duck_that_boots_by_uefi_is_offered_its_address_and_its_file() {
    let mut bench = Bench::new(config());
    let id = [&[0][..], &[7; 16]].concat();
    let asked: [(u8, &[u8]); 3] = [(93, &[0, 7]), (60, b"PXEClient:Arch:00007:UNDI:003001"), (97, &id)];
    let sent = bench.ask(&dhcp(DUCK, DISCOVER, true, &asked));
    let [offer] = &sent[..] else { panic!("{} frames", sent.len()) };
    let said = read(offer);
    assert_eq!((said.to_mac, said.to, said.ports), (BROADCAST, Ipv4Addr::BROADCAST, [67, 68]));
    let data = &said.data;
    assert!((300..=548).contains(&data.len()));
    assert_eq!((&data[..4], &data[4..8], data[10]), (&[2, 1, 6, 0][..], &[0x12, 0x34, 0x56, 0x78][..], 0x80));
    assert_eq!((&data[16..20], &data[20..24], &data[28..34]), (&[10, 21, 1, 17][..], &[10, 21, 1, 1][..], &DUCK.0[..]));
    assert_eq!(&data[108..117], b"duck.efi\0");
    let expected: [(u8, &[u8]); 13] = [
        (53, &[2]),
        (54, &[10, 21, 1, 1]),
        (51, &[0, 1, 0x51, 0x80]),
        (1, &[255, 255, 255, 0]),
        (28, &[10, 21, 1, 255]),
        (12, b"d7"),
        (66, b"10.21.1.1"),
        (67, b"duck.efi"),
        (60, b"PXEClient"),
        (43, &[6, 1, 8, 255]),
        (97, &id),
        (224, b"key=00"),
        (0, &[]),
    ];
    let found = options(&[&data[..], &[255]].concat());
    let expected: Vec<_> = expected[..12].iter().map(|(kind, value)| (*kind, value.to_vec())).collect();
    assert_eq!(found, expected);
    assert_eq!(bench.events(), ["d7 asks for an address and is offered 10.21.1.17"]);
}

#[test]
fn what_is_offered_depends_on_the_architecture() {
    for (architecture, file) in [(Some(0), Some("duck.0")), (Some(9), Some("duck.efi")), (Some(11), None), (None, None)]
    {
        let mut bench = Bench::new(config());
        let number = architecture.map(u16::to_be_bytes);
        let asked: Vec<(u8, &[u8])> = number.iter().map(|number| (93, &number[..])).collect();
        let said = read(&bench.ask(&dhcp(DUCK, DISCOVER, false, &asked))[0]);
        assert_eq!((said.to_mac, said.to), (DUCK, DUCK_IP), "it can hear its own address already");
        let options = options(&said.data);
        assert_eq!(value(&options, 67), file.map(str::as_bytes), "{architecture:?}");
        assert_eq!((value(&options, 3), value(&options, 6), value(&options, 60)), (None, None, None));
    }
}

#[test]
fn a_request_for_the_offer_is_granted_and_for_another_address_denied() {
    let mut bench = Bench::new(config());
    let kind = |frames: &[Vec<u8>]| -> Vec<u8> { frames.iter().map(|f| options(&read(f).data)[0].1[0]).collect() };
    let ours = SERVER_IP.octets();
    let granted = bench.ask(&dhcp(DUCK, REQUEST, false, &[(54, &ours), (50, &DUCK_IP.octets())]));
    assert_eq!(kind(&granted), [5]);
    let denied = bench.ask(&dhcp(DUCK, REQUEST, false, &[(54, &ours), (50, &[10, 21, 1, 99])]));
    assert_eq!(kind(&denied), [6]);
    assert_eq!((read(&denied[0]).to_mac, &read(&denied[0]).data[16..20]), (BROADCAST, &[0; 4][..]));
    // Another server's business, and messages that nobody answers.
    assert!(bench.ask(&dhcp(DUCK, REQUEST, false, &[(54, &[10, 21, 1, 2]), (50, &DUCK_IP.octets())])).is_empty());
    for other in [2, 4, 5, 6, 7, INFORM, 9, 77] {
        assert!(bench.ask(&dhcp(DUCK, other, false, &[])).is_empty(), "{other}");
    }
}

#[test]
fn nobody_is_answered_in_anothers_name() {
    let mut bench = Bench::new(config());
    // The duck's address in the message, another's on the frame; and through a relay.
    let mut frame = dhcp(DUCK, DISCOVER, true, &[]);
    frame[6..12].copy_from_slice(&STRANGER.0);
    assert!(bench.ask(&frame).is_empty());
    for from in [SERVER, BROADCAST] {
        assert!(bench.ask(&dhcp(from, DISCOVER, true, &[])).is_empty());
    }
    assert!(bench.events().is_empty());
}

#[test]
fn strangers_are_told_of_once_and_answered_while_adoption_is_on() {
    let mut bench = Bench::new(config());
    for _ in 0..3 {
        assert!(bench.ask(&dhcp(STRANGER, DISCOVER, true, &[])).is_empty());
        assert!(bench.ask(&dhcp(STRANGER, REQUEST, true, &[(50, &[10, 21, 1, 200])])).is_empty());
    }
    assert_eq!(bench.events().len(), 1);
    let range = |last: [u8; 2]| Some([10, 21, 1, last[0]].into()..=[10, 21, 1, last[1]].into());
    bench.service.set_adopt(range([200, 201])).expect("addresses of the subnet");
    let offers: Vec<_> = (0..4)
        .map(|last| {
            let offer = bench.ask(&dhcp(Mac([2, 0, 0, 0, 9, last]), DISCOVER, true, &[]));
            offer.first().map(|offer| read(offer).data[19])
        })
        .collect();
    assert_eq!(offers, [Some(200), Some(201), None, None]);
    let wrong = bench.service.set_adopt(range([200, 255])).expect_err("that is everyone's");
    assert_eq!(
        wrong.to_string(),
        "the last address for adoption: expected an address for a device in 10.21.1.0/24, found 10.21.1.255"
    );
    // Somebody who becomes a row has its own address.
    let row =
        Lease { mac: Mac([2, 0, 0, 0, 9, 0]), address: [10, 21, 1, 18].into(), name: "n".into(), text: "".into() };
    bench.service.set_leases(vec![row.clone()]).expect("a good row");
    assert_eq!(read(&bench.ask(&dhcp(row.mac, DISCOVER, true, &[]))[0]).data[19], 18);
}

#[test]
fn a_flood_of_questions_is_answered_at_a_bounded_pace() {
    let mut bench = Bench::new(Config { adopt: Some([10, 21, 1, 2].into()..=[10, 21, 1, 250].into()), ..config() });
    let mut answered = 0;
    for i in 0..20_000u64 {
        answered += bench.ask(&dhcp(Mac::from_u64(0x0200_0000_0000 | i), DISCOVER, true, &[])).len();
        if i % 200 == 0 {
            bench.wait(1);
        }
    }
    assert!((64..=64 + 50).contains(&answered), "{answered} answers in 100 ms");
    assert!(bench.events().len() <= 256);
    // Without a chance to send, only a few answers wait.
    for i in 0..1000u64 {
        bench.wait(2);
        bench.service.handle(bench.now, &dhcp(Mac::from_u64(0x0200_0000_0000 | i), DISCOVER, true, &[]));
    }
    assert!((1..=16).contains(&bench.sent().len()));
}

#[test]
fn its_own_address_is_told_and_pinged() {
    let mut bench = Bench::new(config());
    let mut ask = vec![0; 60];
    ask[..6].fill(0xff);
    ask[6..12].copy_from_slice(&DUCK.0);
    ask[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    ask[22..28].copy_from_slice(&DUCK.0);
    ask[28..32].copy_from_slice(&DUCK_IP.octets());
    ask[38..42].copy_from_slice(&SERVER_IP.octets());
    let answer = bench.ask(&ask);
    assert_eq!(answer.len(), 1);
    let expected = [
        &DUCK.0[..],
        &SERVER.0,
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
        &SERVER.0,
        &[10, 21, 1, 1],
        &DUCK.0,
        &[10, 21, 1, 17],
    ];
    assert_eq!(answer[0][..42], expected.concat());
    assert_eq!(answer[0][42..], [0; 18]);
    // For another, a gratuitous one, and one that lies about its sender.
    for (at, byte) in [(41, 2), (21, 2), (27, 99)] {
        let mut other = ask.clone();
        other[at] = byte;
        assert!(bench.ask(&other).is_empty(), "byte {at}");
    }
    assert!(!bench.service.handle(bench.now, &[&ask[..12], &[0x88, 0xb5], &ask[14..]].concat()), "not its business");
    assert!(bench.service.handle(bench.now, &ask[..14]));
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused_by_its_field() {
    let lease = |last: u8, ip: u8| Lease {
        mac: Mac([2, 0, 0, 0, 1, last]),
        address: [10, 21, 1, ip].into(),
        name: format!("d{ip}").into(),
        text: "".into(),
    };
    type Change = Box<dyn Fn(&mut Config)>;
    let cases: [(Change, &str); 9] = [
        (Box::new(|c| c.mtu = 500), "the link's MTU: expected 576 to 9600, found 500"),
        (Box::new(|c| c.prefix = 31), "the subnet's prefix: expected 8 to 30 bits, found 31"),
        (
            Box::new(|c| c.address = [10, 21, 1, 0].into()),
            "the service: expected an address for a device in 10.21.1.0/24, found 10.21.1.0",
        ),
        (Box::new(|c| c.mac = BROADCAST), "the service: expected a device's hardware address, found ff:ff:ff:ff:ff:ff"),
        (Box::new(move |c| c.leases = vec![lease(1, 5), lease(1, 6)]), "d5 and d6 have the same hardware address"),
        (Box::new(move |c| c.leases = vec![lease(1, 5), lease(2, 1)]), "the service and d1 have the same address"),
        (
            Box::new(move |c| c.leases[0].text = "x".repeat(129).into()),
            "expected at most 128 bytes without control characters, found 129",
        ),
        (Box::new(move |c| c.leases = vec![lease(1, 5); 5000]), "expected at most 4096 leases, found 5000"),
        (Box::new(|c| c.files.clear()), "architecture 0 boots \"duck.0\", which is not among the files"),
    ];
    for (change, expected) in cases {
        let mut config = config();
        change(&mut config);
        let error: ConfigError = Service::new(config).err().expect(expected);
        assert!(error.to_string().ends_with(expected), "{error}");
    }
}

#[test]
fn the_longest_names_still_fit_an_answer() {
    let mut config = config();
    let long = "n".repeat(40);
    config.leases[0].name = long.as_str().into();
    config.leases[0].text = "t".repeat(128).into();
    config.files.insert(long.as_str().into(), [1][..].into());
    config.boot_files[1].name = long.as_str().into();
    let mut bench = Bench::new(config);
    let id = [1; 17];
    let asked: [(u8, &[u8]); 3] = [(93, &[0, 7]), (60, b"PXEClient"), (97, &id)];
    let said = read(&bench.ask(&dhcp(DUCK, DISCOVER, true, &asked))[0]);
    assert!(said.data.len() <= 548 && ETHERNET + 28 + said.data.len() < 1514);
    assert_eq!(options(&said.data).last(), Some(&(224, vec![b't'; 128])));
}
