//! TFTP, packet by packet.

mod common;

use common::{Bench, DUCK, DUCK_IP, SERVER_IP, config, content, datagram, read};
use link::Mac;

/// A packet whose `|` are zeros.
fn packet(op: u8, text: &str) -> Vec<u8> {
    let text = text.bytes().map(|byte| if byte == b'|' { 0 } else { byte });
    [0, op].into_iter().chain(text).collect()
}

fn acknowledge(number: u16) -> Vec<u8> {
    [0, 4].into_iter().chain(number.to_be_bytes()).collect()
}

/// Fetches a file in order; its blocks.
fn fetch(bench: &mut Bench, request: &str) -> Vec<Vec<u8>> {
    let mut said = bench.tftp([1000, 69], &packet(1, request));
    let mut blocks = Vec::new();
    while let [first, ..] = &said[..] {
        let ports = [1000, first.ports[0]];
        let mut last = 0;
        for packet in &said {
            assert_eq!(packet.ports, [ports[1], 1000]);
            match packet.data[..4] {
                [0, 3, high, low] => {
                    last = u16::from_be_bytes([high, low]);
                    blocks.push(packet.data[4..].to_vec());
                    assert_eq!(usize::from(last), blocks.len() & 0xffff);
                }
                [0, 6, ..] => last = 0,
                _ => panic!("{:?}", packet.data),
            }
        }
        said = bench.tftp(ports, &acknowledge(last));
    }
    blocks
}

#[test]
fn a_file_arrives_in_blocks_of_which_the_last_is_short() {
    let mut bench = Bench::new(config());
    for (name, length, options, block) in [
        ("duck.0", 3000, "", 512),
        ("/duck.0", 3000, "blksize|1428|tsize|0|", 1428),
        ("exact", 1024, "blksize|512|", 512),
        ("empty", 0, "tsize|0|", 512),
        ("duck.efi", 5000, "blksize|65464|", 1468),
        ("duck.efi", 5000, "blksize|500|windowsize|4|", 500),
        ("duck.efi", 5000, "blksize|16|windowsize|1000|timeout|1|", 16),
    ] {
        let blocks = fetch(&mut bench, &format!("{name}|octet|{options}"));
        assert_eq!(blocks.concat(), content(length), "{name} {options}");
        assert_eq!(blocks.len(), length / block + 1, "{name} {options}");
        assert!(bench.events().last().is_some_and(|event| event.contains(" has fetched ")));
        assert_eq!(bench.service.running().count(), 0);
    }
}

#[test]
fn more_blocks_than_there_are_numbers_arrive() {
    let mut bench = Bench::new(config());
    assert!(fetch(&mut bench, "long|octet|blksize|512|windowsize|16|").concat() == content(40_000_000));
}

#[test]
fn what_is_lost_is_sent_again_and_what_comes_twice_is_not() {
    let mut bench = Bench::new(config());
    let first = bench.tftp([1000, 69], &packet(1, "duck.0|octet|blksize|1000|"));
    assert_eq!(first[0].data, packet(6, "blksize|1000|"));
    let ports = [1000, first[0].ports[0]];
    bench.wait(399);
    assert!(bench.sent().is_empty());
    bench.wait(1);
    assert_eq!(bench.sent().len(), 1, "the options again");
    let block = bench.tftp(ports, &acknowledge(0));
    assert_eq!(&block[0].data[..4], &[0, 3, 0, 1]);
    // The same once more, something old, something that was never sent.
    for number in [0, 65_535, 2, 3] {
        assert!(bench.tftp(ports, &acknowledge(number)).is_empty(), "{number}");
    }
    bench.wait(400);
    assert_eq!(bench.sent().len(), 1, "block 1 again");
    let running: Vec<_> = bench.service.running().collect();
    assert!(running.is_empty(), "nothing has arrived");
    assert_eq!(&bench.tftp(ports, &acknowledge(1))[0].data[..4], &[0, 3, 0, 2]);
    assert_eq!(bench.service.running().next().map(|running| running.percent()), Some(33));
    // It waits longer each time, and gives up.
    let mut waits = Vec::new();
    while let Some(at) = bench.service.next_deadline(bench.now) {
        assert!(at > bench.now);
        waits.push((at - bench.now).as_millis());
        bench.now = at;
        bench.sent();
        assert!(waits.len() < 20);
    }
    assert_eq!(waits, [400, 800, 1600, 3200, 4000, 4000, 4000, 4000, 4000]);
    let events = bench.events();
    assert_eq!(events.last().map(String::as_str), Some("d7 has stopped fetching duck.0 at 33 %: it answers no more"));
    assert!(bench.tftp(ports, &acknowledge(2)).is_empty(), "it is over");
}

#[test]
fn a_hole_in_a_window_is_filled_from_there() {
    let mut bench = Bench::new(config());
    let first = bench.tftp([1000, 69], &packet(1, "duck.efi|octet|blksize|100|windowsize|8|"));
    let ports = [1000, first[0].ports[0]];
    let numbers = |said: Vec<common::Said>| -> Vec<u8> { said.iter().map(|packet| packet.data[3]).collect() };
    assert_eq!(numbers(bench.tftp(ports, &acknowledge(0))), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(numbers(bench.tftp(ports, &acknowledge(3))), [4, 5, 6, 7, 8, 9, 10, 11]);
}

#[test]
fn a_client_that_only_asks_for_the_size_is_no_news() {
    let mut bench = Bench::new(config());
    let said = bench.tftp([1000, 69], &packet(1, "duck.efi|octet|tsize|0|"));
    assert_eq!(said[0].data, packet(6, "tsize|5000|"));
    assert!(bench.tftp([1000, said[0].ports[0]], &packet(5, "|\x08never mind|")).is_empty());
    assert!(bench.events().is_empty() && bench.service.next_deadline(bench.now).is_none());
    // One that stops in the middle is.
    let said = bench.tftp([1000, 69], &packet(1, "duck.0|octet|"));
    bench.tftp([1000, said[0].ports[0]], &acknowledge(1));
    bench.tftp([1000, said[0].ports[0]], &packet(5, "|\x03full\n|"));
    let events = bench.events();
    assert_eq!(events[1], "d7 has stopped fetching duck.0 at 17 %: its error 3, \"full?\"");
}

#[test]
fn what_is_not_there_or_not_done_here_is_refused() {
    let mut bench = Bench::new(config());
    for (op, text, code, why) in [
        (1, "none|octet|", 1, "no such file"),
        (1, "../duck.efi|octet|", 1, "no such file"),
        (1, "/etc/passwd|octet|", 1, "no such file"),
        (1, "duck.efi/|octet|", 1, "no such file"),
        (1, "|octet|", 1, "no such file"),
        (1, "duck.efi|netascii|", 4, "only octet mode is known here"),
        (2, "duck.efi|octet|", 2, "files are only read here"),
    ] {
        let said = bench.tftp([1000, 69], &packet(op, text));
        assert_eq!(said[0].data, [&[0, 5, 0, code], why.as_bytes(), &[0]].concat(), "{text}");
    }
    // Requests that go elsewhere, and what is no request.
    let read = packet(1, "duck.efi|octet|");
    for (port, data) in [(70, &read[..]), (49_152, &read), (69, &acknowledge(1)), (69, b"\0\x01duck.efi"), (69, b"")] {
        assert!(bench.tftp([1000, port], data).is_empty(), "{port} {data:?}");
    }
    assert_eq!(bench.service.next_deadline(bench.now), None);
}

#[test]
fn files_are_for_those_who_have_their_address_from_here() {
    let mut bench = Bench::new(config());
    let request = packet(1, "duck.efi|octet|");
    let stranger = Mac([2, 0, 0, 0, 9, 9]);
    for (mac, address) in [(stranger, DUCK_IP), (DUCK, [10, 21, 1, 18].into()), (stranger, [10, 21, 1, 9].into())] {
        assert!(bench.ask(&datagram(mac, [address, SERVER_IP], [1000, 69], &request)).is_empty());
    }
    assert!(bench.ask(&datagram(DUCK, [DUCK_IP, [10, 21, 1, 255].into()], [1000, 69], &request)).is_empty());
    // Nor can another acknowledge for the duck.
    let said = bench.tftp([1000, 69], &request);
    let port = said[0].ports[0];
    assert!(bench.ask(&datagram(stranger, [DUCK_IP, SERVER_IP], [1000, port], &acknowledge(1))).is_empty());
    assert!(bench.tftp([1001, port], &acknowledge(1)).is_empty());
    assert_eq!(bench.tftp([1000, port], &acknowledge(1)).len(), 1);
}

#[test]
fn a_client_has_a_few_transfers_and_a_request_that_comes_twice_is_one() {
    let mut bench = Bench::new(config());
    let request = packet(1, "duck.efi|octet|");
    for _ in 0..3 {
        assert_eq!(bench.tftp([1000, 69], &request).len(), 1);
    }
    for port in 1001..1100 {
        assert_eq!(bench.tftp([port, 69], &request).len(), 1);
        bench.wait(2);
    }
    bench.wait(400);
    let again: Vec<u16> = bench.sent().iter().map(|frame| read(frame).ports[1]).collect();
    assert_eq!(again.len(), 4, "{again:?}");
    assert!(again.iter().all(|port| *port >= 1096));
}

#[test]
fn files_can_be_replaced_while_one_is_fetched() {
    let mut bench = Bench::new(config());
    let said = bench.tftp([1000, 69], &packet(1, "duck.0|octet|"));
    let mut files = config().files;
    files.insert("duck.0".into(), [9; 10][..].into());
    bench.service.set_files(files).expect("all that is booted is there");
    let next = bench.tftp([1000, said[0].ports[0]], &acknowledge(1));
    assert_eq!(next[0].data[4..], content(3000)[512..1024]);
    assert_eq!(bench.tftp([1001, 69], &packet(1, "duck.0|octet|"))[0].data[4..], [9; 10]);
    assert!(bench.service.set_files(boot::Files::new()).is_err());
}
