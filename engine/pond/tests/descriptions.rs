//! The descriptions in `tests/ponds`, which every reader of ponds must take or refuse alike.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pond::{LinkKind, Mac, Pond, Problem, Size};

fn ponds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ponds")
}

fn files(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(ponds().join(folder)).expect("it ships with the code");
    let name =
        |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name().into_string().expect("a name");
    let mut files: Vec<_> = entries.map(|entry| format!("{folder}/{}", name(entry))).collect();
    files.sort();
    files
}

#[test]
fn good_descriptions_are_taken_and_written_as_they_were_read() {
    for file in files("good") {
        let pond = Pond::load(&ponds().join(&file)).unwrap_or_else(|error| panic!("{error}"));
        let text = pond.to_toml().expect("is written");
        let again = Pond::from_toml(&text).expect("is read");
        assert_eq!(again.to_toml().expect("is written"), text, "{file}");
        assert_eq!((&again.ports, &again.ducks), (&pond.ports, &pond.ducks), "{file}");
        assert_eq!(again.check().map_err(|error| error.to_string()), Ok(()), "{file}");
    }
}

#[test]
fn bad_descriptions_are_refused_in_one_line_that_names_file_and_field() {
    let expected = fs::read(ponds().join("expected.json")).expect("it ships with the code");
    let expected: BTreeMap<String, String> = serde_json::from_slice(&expected).expect("file to field");
    assert_eq!(files("bad"), expected.keys().cloned().collect::<Vec<_>>(), "every file has its field");
    for (file, field) in expected {
        let path = ponds().join(&file);
        let error = Pond::load(&path).expect_err(&file);
        assert_eq!(error.field(), field, "{file}: {error}");
        let line = error.to_string();
        assert!(line.starts_with(&format!("{}: {field}: ", path.display())) && !line.contains('\n'), "{line}");
        assert_eq!(error.path(), Some(&*path));
        if file.ends_with(".toml") {
            let text = fs::read_to_string(&path).expect("read");
            assert_eq!(text.lines().next(), Some(&*format!("# expected: {field}")), "{file}");
        }
    }
}

#[test]
fn a_message_has_both_values_and_the_other_field() {
    let error = |file: &str| {
        let path = ponds().join("bad").join(file);
        let line = Pond::load(&path).expect_err(file).to_string();
        line.strip_prefix(&format!("{}: ", path.display())).expect("begins with the file").to_owned()
    };
    let cases = [
        ("mac-twice.toml", "ducks[2].mac: 02:00:00:00:01:01 is already ducks[0].mac"),
        ("pci-twice.toml", "ports[1].pci: 0000:01:00.0 is already ports[0].link"),
        ("subnets-overlap.toml", "ports[1].subnet: 10.21.0.0/16 overlaps ports[0].subnet, 10.21.1.0/24"),
        ("address-outside.toml", "ducks[2].address: 10.21.3.11 is not in the subnet 10.21.2.0/24 of port west"),
        ("lcore-not-isolated.toml", "ports[1].lcore: processor 6 is not one of the isolated ones (2, 4)"),
        ("duck-on-unknown-port.toml", "ducks[2].port: there is no port north; the ports are east, west"),
        ("address-of-host.toml", "ducks[0].address: 10.21.1.1 is already ports[0].address"),
        (
            "duck-unknown-field.toml",
            "ducks[2].adress: is no field; the fields here are name, port, mac, address, memory, link",
        ),
        ("duck-without-port.toml", "ducks[2].port: is missing"),
        ("mac-a-list.json", "ducks[0].mac: invalid type: found sequence, expected a string"),
        ("address-no-address.toml", "ducks[0].address: \"10.21.1\" is not an IPv4 address such as 10.21.1.11"),
        ("huge-pages-a-list.json", "huge_pages: found sequence, expected a table"),
        ("port-a-text.json", "ports[0]: found string \"udp:127.0.0.1:7000\", expected a table"),
        ("mac-twice-in-other-letters.toml", "ducks[1].mac: 02:00:00:00:ab:01 is already ducks[0].mac"),
    ];
    for (file, line) in cases {
        assert_eq!(error(file), line, "{file}");
    }
}

#[test]
fn a_text_that_is_no_description_is_refused_with_its_line() {
    let cases = [
        ("name = \"a\"\nports = [\n", "TOML"),
        ("{ \"name\": \"a\",\n  \"ports\": [,] }", "JSON"),
        ("{ \"name\": \"a\", \"ports\": [],\n \"name\": \"b\" }", "JSON"),
        ("{ \"ducks\": [{ \"name\": \"a\",\n \"port\": \"p\", \"name\": \"b\" }] }", "JSON"),
        ("name = \"a\"\nname = \"b\"", "TOML"),
    ];
    for (text, expected) in cases {
        let read = if text.starts_with('{') { Pond::from_json(text) } else { Pond::from_toml(text) };
        let error = read.expect_err(text);
        let Problem::Syntax { line, language, .. } = error.problem() else { panic!("{error}") };
        assert_eq!((error.field(), *language), ("", expected), "{error}");
        assert!((2..=3).contains(line), "{error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pond.toml");
    assert!(matches!(Pond::load(&path).expect_err("absent").problem(), Problem::Read(_)));
    fs::write(&path, b"name = 'a'\n# \xff").expect("written");
    let error = Pond::load(&path).expect_err("not UTF-8").to_string();
    assert!(error.ends_with("pond.toml: line 2 is no text: it is not UTF-8"), "{error}");
    fs::write(&path, vec![b'#'; (1 << 24) + 1]).expect("written");
    assert!(matches!(Pond::load(&path).expect_err("large").problem(), Problem::Large { limit: 0x100_0000 }));
}

#[test]
fn nix_and_hand_say_the_same() {
    let pond = Pond::load(&ponds().join("good/four-ports.json")).expect("good");
    assert_eq!((pond.ports.len(), pond.ducks.len()), (4, 32));
    let again = Pond::from_toml(&pond.to_toml().expect("is written")).expect("is read");
    assert_eq!(
        (again.ports, again.ducks, again.isolated),
        (pond.ports.clone(), pond.ducks.clone(), pond.isolated.clone())
    );
    assert_eq!(pond.ducks[31].memory, Some(Size(32 << 30)));
    let port = pond.port("port3").expect("described");
    assert_eq!((port.link.kind(), port.lcore), (LinkKind::Dpdk, Some(2)));
    assert_eq!(port.pci_address().map(|pci| pci.to_string()).as_deref(), Some("0000:01:00.3"));
    assert_eq!(port.host_address().map(|host| host.to_string()).as_deref(), Some("10.21.4.1"));
    assert_eq!(pond.ducks_of("port3").count(), 8);
}

#[test]
fn null_and_absent_are_the_same() {
    let text = fs::read_to_string(ponds().join("good/nulls.json")).expect("it ships with the code");
    let nulls = Pond::from_json(&text).expect("good");
    let mut object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let strip = |value: &mut serde_json::Value| {
        value.as_object_mut().expect("an object").retain(|_, field| !field.is_null());
    };
    strip(&mut object);
    for list in ["ports", "ducks"] {
        object[list].as_array_mut().expect("a list").iter_mut().for_each(strip);
    }
    assert!(!object.to_string().contains(":null"));
    assert_eq!(Pond::from_json(&object.to_string()).expect("good"), nulls);
    object["ducks"] = serde_json::Value::Null;
    assert_eq!(Pond::from_json(&object.to_string()).expect("its form is good").ducks, []);
}

#[test]
fn paths_start_from_the_descriptions_folder() {
    let pond = Pond::load(&ponds().join("good/everything.toml")).expect("good");
    assert_eq!(pond.model_folder(), Some(ponds().join("good/models/v32")));
    assert_eq!(pond.key_file(), Some("/run/secrets/pond-key".into()));
}

#[test]
fn more_ducks_than_units_are_refused_with_both_numbers() {
    let pond = Pond::load(&ponds().join("good/four-ports.json")).expect("good");
    pond.check_model(32).expect("one unit each");
    let error = pond.check_model(31).expect_err("one too many");
    assert_eq!(error.field(), "ducks");
    assert!(error.to_string().contains("32 ducks") && error.to_string().contains("31 units"), "{error}");
}

#[test]
fn an_unfinished_description_can_be_read_to_add_rows() {
    let path = ponds().join("bad/ducks-none.toml");
    let mut pond = Pond::read(&path).expect("its fields are good");
    assert_eq!(pond.check().expect_err("no ducks").field(), "ports[0]");
    for (name, port) in [("one", "east"), ("two", "west")] {
        pond.ducks.push(pond::Duck::new(name, port));
    }
    pond.check().expect("complete now");
}

#[test]
fn a_duck_is_known_by_its_name_and_else_by_its_address() {
    let pond = Pond::load(&ponds().join("good/demo.toml")).expect("good");
    let (teal, wigeon) = (&pond.ducks[1], &pond.ducks[2]);
    let mac = wigeon.mac.expect("described");
    assert_eq!(pond.find(&teal.id(), mac), Some(teal), "the name comes first");
    assert_eq!(pond.find(&[7; 16], mac), Some(wigeon));
    assert_eq!(pond.find(&[7; 16], Mac([2, 0, 0, 0, 9, 9])), None);
    assert_eq!(pond.find(&[0; 16], Mac([2, 0, 0, 0, 9, 9])), None);
    assert_eq!(&teal.id(), b"teal\0\0\0\0\0\0\0\0\0\0\0\0");
}
