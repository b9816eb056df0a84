//! Programs that are not those of the description are not given out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use pond::{KeyError, NarHash, Pond, signature};
use wire::key::Key;

/// A folder with a description and a signed program.
struct Folder {
    folder: tempfile::TempDir,
    key: Key,
}

impl Folder {
    fn new(contents: &[u8]) -> Folder {
        let folder = Folder { folder: tempfile::tempdir().expect("a folder"), key: Key::from_seed([7; 32]) };
        fs::write(folder.file(), contents).expect("a file");
        signature::create(&folder.file(), &folder.key).expect("signed");
        folder
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("kernels.elf")
    }

    /// The description with this line in it.
    fn pond(&self, line: &str) -> Pond {
        let port = "[[ports]]\nname = \"a\"\nlink = \"eth:a\"\n[[ducks]]\nname = \"b\"\nport = \"a\"\n";
        let path = self.folder.path().join("pond.toml");
        fs::write(&path, format!("name = \"p\"\nkernels = \"kernels.elf\"\n{line}\n{port}")).expect("a file");
        Pond::load(&path).expect("a description")
    }
}

#[test]
fn only_the_program_of_the_description_is_given_out() {
    let folder = Folder::new(b"an ELF");
    let public = folder.key.public();
    let expected = NarHash::of_file(b"an ELF", false).to_string();
    let pond = folder.pond(&format!("kernels_hash = \"{expected}\""));
    assert_eq!(pond.program(&public).expect("the same").expect("described").0, b"an ELF");

    // Another program, and a signature for it: the key says who, not which.
    fs::write(folder.file(), b"another").expect("a file");
    signature::create(&folder.file(), &folder.key).expect("signed");
    let found = NarHash::of_file(b"another", false);
    let error = pond.program(&public).expect_err("another program");
    assert!(matches!(error, KeyError::OtherProgram { field: "kernels_hash", .. }), "{error:?}");
    assert_eq!(
        error.to_string(),
        format!(
            "{} has the NAR hash {found}, expected {expected} by the pond's kernels_hash: use the program that belongs to \
             this description, or write its own hash there if this one is meant",
            folder.file().display()
        )
    );
    assert!(folder.pond("").program(&public).expect("nothing is said of its hash").is_some());

    // Being allowed to run is part of what Nix hashes.
    fs::set_permissions(folder.file(), fs::Permissions::from_mode(0o755)).expect("its owner");
    let runnable = NarHash::of_file(b"another", true).to_string();
    let pond = folder.pond(&format!("kernels_hash = \"{runnable}\""));
    assert!(pond.program(&public).expect("the same").is_some());
}

#[test]
fn a_program_of_the_right_hash_still_needs_its_signature() {
    let folder = Folder::new(b"an ELF");
    let pond = folder.pond(&format!("kernels_hash = \"{}\"", NarHash::of_file(b"an ELF", false)));
    let other = Key::from_seed([8; 32]).public();
    assert!(matches!(pond.program(&other), Err(KeyError::Unsigned { .. })));
    fs::remove_file(signature::path_of(&folder.file())).expect("it was there");
    assert!(matches!(pond.program(&folder.key.public()), Err(KeyError::Read { .. })));
}

#[test]
fn the_firmware_is_compared_with_its_own_field() {
    let folder = Folder::new(b"nest");
    folder.pond("").check_nest(&folder.file()).expect("nothing is said of its hash");
    let line = |contents| format!("nest_hash = \"{}\"", NarHash::of_file(contents, false));
    folder.pond(&line(b"nest")).check_nest(&folder.file()).expect("the same");
    let error = folder.pond(&line(b"another")).check_nest(&folder.file()).expect_err("another").to_string();
    assert!(error.contains(&format!("{} by the pond's nest_hash", NarHash::of_file(b"another", false))), "{error}");
    assert!(matches!(folder.pond(&line(b"nest")).check_nest(&folder.file().join("x")), Err(KeyError::Read { .. })));
}

#[test]
fn a_hash_is_written_as_it_is_read_and_a_wrong_one_is_refused_by_its_field() {
    let folder = Folder::new(b"an ELF");
    let hash = NarHash::of_file(b"an ELF", false);
    let pond = folder.pond(&format!("kernels_hash = \"{hash}\""));
    let again = Pond::from_toml(&pond.to_toml().expect("is written")).expect("is read");
    assert_eq!((again.kernels_hash, again.nest_hash), (Some(hash), None));
    let json = r#"{"name": "p", "kernels_hash": "sha256-AAAA", "ports": []}"#;
    let error = Pond::from_json(json).expect_err("no hash");
    assert_eq!(error.field(), "kernels_hash");
    let line = error.to_string();
    assert!(line.contains("\"sha256-AAAA\" is not a NAR hash") && !line.contains('\n'), "{line}");
}
