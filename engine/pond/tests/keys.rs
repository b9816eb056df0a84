//! Files of keys and signatures.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use pond::{KeyError, Pond, hex, key, signature};
use wire::key::{Domain, Key};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o7777
}

fn write(path: &Path, text: impl AsRef<[u8]>, mode: u32) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
}

fn names(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn a_new_key_is_private_and_reads_back() {
    let folder = folder();
    let path = folder.path().join("key");
    let made = key::create(&path).expect("made");
    assert_eq!(mode(&path), 0o600);
    let text = fs::read_to_string(&path).expect("read");
    assert!(text.starts_with("duckpond-secret-key-1 ") && text.ends_with('\n'), "the form is fixed");
    assert_eq!(text.len(), 22 + 64 + 1);
    assert_eq!(key::load(&path).expect("reads").public(), made.public());
    assert_eq!(key::load_public(&path).expect("reads"), made.public());
    assert_eq!(names(folder.path()), [&*path], "nothing else is left");
    let other = key::create(&folder.path().join("other")).expect("made");
    assert_ne!(made.public(), other.public());
}

#[test]
fn a_key_never_takes_the_place_of_a_file() {
    let folder = folder();
    let path = folder.path().join("key");
    fs::write(&path, "precious").expect("written");
    assert!(matches!(key::create(&path), Err(KeyError::Exists { .. })));
    assert_eq!(fs::read(&path).expect("read"), b"precious");
    let link = folder.path().join("link");
    symlink("nowhere", &link).expect("linked");
    assert!(matches!(key::create(&link), Err(KeyError::Exists { .. })), "not through a link either");
    let nowhere = key::create(&folder.path().join("no/key")).expect_err("no such folder");
    assert!(matches!(nowhere, KeyError::Write { .. }));
    assert_eq!(names(folder.path()).len(), 2);
}

#[test]
fn a_secret_that_others_can_read_is_refused_with_the_command() {
    let folder = folder();
    let path = folder.path().join("key");
    key::create(&path).expect("made");
    for open in [0o640, 0o604, 0o620, 0o601, 0o644] {
        fs::set_permissions(&path, fs::Permissions::from_mode(open)).expect("set");
        let error = key::load(&path).expect_err("readable").to_string();
        assert!(error.contains(&format!("run chmod 600 {}", path.display())), "{error}");
        assert!(error.contains(&format!("mode {open:04o}")), "{error}");
        assert!(matches!(key::load_public(&path), Err(KeyError::Readable { .. })));
    }
    for private in [0o600, 0o400] {
        fs::set_permissions(&path, fs::Permissions::from_mode(private)).expect("set");
        key::load(&path).expect("private");
    }
}

#[test]
fn another_files_content_is_refused_and_not_repeated() {
    let folder = folder();
    let path = folder.path().join("key");
    let secret = "ab".repeat(32);
    let cases = [
        ("".to_owned(), "does not begin"),
        (secret.clone(), "does not begin"),
        (format!("duckpond-secret-key-2 {secret}"), "does not begin"),
        (format!("duckpond-secret-key-1{secret}"), "does not begin"),
        (format!("duckpond-secret-key-1 {}", &secret[1..]), "63 characters follow"),
        (format!("duckpond-secret-key-1 {secret}0"), "65 characters follow"),
        (format!("duckpond-secret-key-1 {secret} "), "65 characters follow"),
        (format!("duckpond-secret-key-1 {secret}\n\n"), "65 characters follow"),
        (format!("duckpond-secret-key-1 {}x", &secret[1..]), "something else than hexadecimal digits"),
        ("duckpond-secret-key-1 ".repeat(100), "more than 1024 bytes"),
    ];
    for (text, reason) in cases {
        write(&path, &text, 0o600);
        let error = key::load(&path).expect_err(&text).to_string();
        assert!(error.contains(reason) && error.contains("is no secret key"), "{error}");
        assert!(!error.contains("abab"), "{error}");
    }
    write(&path, [0xff; 20], 0o600);
    assert!(matches!(key::load(&path), Err(KeyError::Form { .. })));
    assert!(matches!(key::load(folder.path()), Err(KeyError::Form { .. })));
    assert!(matches!(key::load(&folder.path().join("none")), Err(KeyError::Read { .. })));
    write(&path, format!("duckpond-secret-key-1 {}\r\n", secret.to_uppercase()), 0o600);
    assert_eq!(key::load(&path).expect("a line is a line").public(), Key::from_seed([0xab; 32]).public());
}

#[test]
fn a_public_key_may_be_read_by_anyone() {
    let folder = folder();
    let path = folder.path().join("key.pub");
    let public = Key::from_seed([3; 32]).public();
    write(&path, format!("{}\n", hex::encode(&public.0)), 0o644);
    assert_eq!(key::load_public(&path).expect("reads"), public);
    let error = key::load(&path).expect_err("not secret").to_string();
    assert!(error.contains("chmod 600"), "{error}");
    write(&path, "012345", 0o644);
    let error = key::load_public(&path).expect_err("short").to_string();
    assert!(error.contains("is no public key"), "{error}");
}

#[test]
fn a_signature_fits_its_file_and_its_key_only() {
    let folder = folder();
    let (path, key) = (folder.path().join("kernels.elf"), Key::from_seed([5; 32]));
    fs::write(&path, vec![7; 100_000]).expect("written");
    let signature = signature::create(&path, &key).expect("signed");
    assert_eq!(signature, folder.path().join("kernels.elf.sig"));
    let text = fs::read_to_string(&signature).expect("read");
    assert_eq!((text.len(), text.ends_with('\n')), (129, true));
    assert_eq!(mode(&signature) & 0o600, 0o600);
    let bytes: [u8; 64] = hex::decode(text.trim_end()).expect("digits");
    let digest = *blake3::hash(&[7; 100_000]).as_bytes();
    assert!(key.public().verify(Domain::Program, &digest, &bytes), "what ducks check");
    assert_eq!((signature::load(&path).expect("reads"), signature::digest_of(&path).expect("reads")), (bytes, digest));
    assert!(signature::verify(&path, &key.public()).expect("reads"));
    assert!(!signature::verify(&path, &Key::from_seed([6; 32]).public()).expect("reads"));
    fs::write(&path, vec![8; 100_000]).expect("written");
    assert!(!signature::verify(&path, &key.public()).expect("reads"));
    signature::create(&path, &key).expect("signed again");
    assert!(signature::verify(&path, &key.public()).expect("reads"));
    fs::write(&signature, &text[..127]).expect("written");
    let error = signature::verify(&path, &key.public()).expect_err("cut").to_string();
    assert!(error.contains("kernels.elf.sig is no signature"), "{error}");
    assert_eq!(names(folder.path()).len(), 2, "nothing else is left");
}

#[test]
fn a_pond_refuses_a_key_that_its_ducks_do_not_trust() {
    let folder = folder();
    let public = key::create(&folder.path().join("key")).expect("made").public();
    let path = folder.path().join("pond.toml");
    let describe = |public: &str| {
        let text = format!(
            "name='a'\nkey='key'\npublic_key='{public}'\nports=[{{name='p',link='udp:x'}}]\nducks=[{{name='d',port='p'}}]"
        );
        fs::write(&path, text).expect("written");
        Pond::load(&path).expect("consistent").secret_key()
    };
    let key = describe(&hex::encode(&public.0)).expect("trusted").expect("named");
    assert_eq!(key.public(), public);
    let error = describe(&"11".repeat(32)).expect_err("another").to_string();
    assert!(error.contains(&hex::encode(&public.0)) && error.contains(&"11".repeat(32)), "{error}");
}
