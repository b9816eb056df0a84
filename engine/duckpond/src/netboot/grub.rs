//! GRUB around the firmware: its menus, and the programs that make images of it.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use pond::Pond;

use super::{BIOS, EFI, ISO, NetbootError};

/// What has to be installed, by the names that Debian gives it.
pub const PACKAGES: &str = "grub-efi-amd64-bin grub-pc-bin grub-common mtools xorriso";
/// The programs in them that are run here, by GRUB or directly.
const PROGRAMS: [&str; 4] = ["grub-mkstandalone", "grub-mkrescue", "mformat", "xorriso"];
/// Modules of every image, and those of each more.
const MODULES: &str = "normal multiboot2 boot echo test serial terminal sleep reboot";
const EFI_MODULES: &str = "memdisk tar net efinet efi_gop efi_uga";
const BIOS_MODULES: &str = "memdisk tar net pxe vbe vga";
const DISC_MODULES: &str = "all_video part_gpt part_msdos iso9660 fat search search_fs_file configfile";
/// Characters of a program's words that are repeated.
const WORDS: usize = 300;

/// Whether all programs can be found.
pub fn check_programs() -> Result<(), NetbootError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = |program: &&'static str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    let programs: Vec<_> = PROGRAMS.into_iter().filter(|program| !found(program)).collect();
    if programs.is_empty() { Ok(()) } else { Err(NetbootError::Missing { programs }) }
}

/// What every menu begins with. UEFI shows its own console on a serial line if there is one; a PC's BIOS does not.
const BEGIN: &str = "\
set timeout=0
if [ \"$grub_platform\" = pc ]; then
  if serial --unit=0 --speed=115200; then terminal_output console serial; fi
fi
";
/// What every menu ends with: nobody sits at a duck.
const END: &str = "\
boot
echo \"The firmware did not start; trying again in 10 seconds.\"
sleep 10
reboot
";

/// The menu of machines that boot over the network: a duck is told its name by the address that it booted over.
pub fn network_menu(pond: &Pond, key: &str) -> String {
    let mut menu = BEGIN.to_owned();
    // Names and addresses were checked when the description was read: nothing in them means anything to GRUB.
    for duck in &pond.ducks {
        if let Some(mac) = duck.mac {
            menu += &format!("if [ \"$net_default_mac\" = {mac} ]; then set duck=name={}; fi\n", duck.name);
        }
    }
    // The card that it booted over is the one that leads to the pond.
    menu += "if [ -n \"$net_default_mac\" ]; then set nic=nic=$net_default_mac; fi\n";
    menu + &format!("multiboot2 (memdisk)/boot/duck.elf $duck key={key} $nic\n") + END
}

/// The menu of machines that boot from a disc or stick.
pub fn disc_menu(key: &str) -> String {
    format!("{BEGIN}multiboot2 /boot/duck.elf key={key}\n{END}")
}

/// Makes all images in `folder`.
pub fn make(folder: &Path, firmware: &[u8], network: &str, disc: &str) -> Result<(), NetbootError> {
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, bytes));
        made.map_err(|source| NetbootError::File { action: "write", path, source })
    };
    write("grub.cfg", network.as_bytes())?;
    write("disc/boot/duck.elf", firmware)?;
    write("disc/boot/grub/grub.cfg", disc.as_bytes())?;
    standalone(folder, "x86_64-efi", EFI, EFI_MODULES)?;
    standalone(folder, "i386-pc-pxe", BIOS, BIOS_MODULES)?;
    let mut command = Command::new("grub-mkrescue");
    command.args(["-o", ISO]).args(small(&format!("{MODULES} {DISC_MODULES}"))).arg("disc");
    run("grub-mkrescue", command.current_dir(folder))
}

/// Makes an image that carries the menu and the firmware in itself.
fn standalone(folder: &Path, format: &str, name: &str, modules: &str) -> Result<(), NetbootError> {
    let mut command = Command::new("grub-mkstandalone");
    // Modules are linked in; in the image's own file system each would lie a second time.
    command.args(["-O", format, "-o", name, &format!("--modules={MODULES} {modules}")]).args(small("memdisk"));
    command.args(["boot/grub/grub.cfg=grub.cfg", "boot/duck.elf=disc/boot/duck.elf"]);
    run("grub-mkstandalone", command.current_dir(folder))
}

/// Only these modules, nothing to look at, all compressed.
fn small(modules: &str) -> [String; 5] {
    let modules = format!("--install-modules={modules}");
    ["--compress=xz", "--locales=", "--fonts=", "--themes=", &modules].map(String::from)
}

fn run(program: &'static str, command: &mut Command) -> Result<(), NetbootError> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NetbootError::Missing { programs: vec![program] },
        _ => NetbootError::Program { program, said: error.to_string() },
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.trim().lines().next_back().unwrap_or("no reason told");
    let said: String = last.trim().trim_end_matches('.').chars().take(WORDS).collect();
    Err(NetbootError::Program { program, said })
}
