//! What to do with the files, in words.

use pond::Pond;

use super::{BIOS, DNSMASQ, EFI, ISO};

/// The whole text.
pub fn text(pond: &Pond, dnsmasq: bool) -> String {
    let named = pond.ducks.iter().filter(|duck| duck.mac.is_some()).count();
    let mut text = format!(
        "\
The ducks of the pond {pond}
{line}

Everything here carries the firmware and the pond's public key, which is no secret. Machines that boot over the network with
the hardware address of one of {named} ducks are also told their names; any other goes by its hardware address.

  {EFI:<14}for UEFI, over the network
  {BIOS:<14}for a PC's BIOS, over the network (PXE)
  {ISO:<14}for a disc or a USB stick, by UEFI or BIOS

Over the network
  On each duck: switch Secure Boot off, switch the network stack (PXE) on, and have it boot from the network first.
  A running `duckpond serve` answers them on its own ports.
",
        pond = pond.name,
        line = "=".repeat("The ducks of the pond ".len() + pond.name.len()),
    );
    if dnsmasq {
        text += &format!(
            "  For ports that stay with the kernel while no engine runs, {DNSMASQ} has dnsmasq answer them: give each interface the\n  \
             address in its comment, then run: dnsmasq --keep-in-foreground --conf-file={DNSMASQ}\n"
        );
    }
    text += &format!(
        "
From a stick
  Write {ISO} to the whole stick, which loses what is on it: dd if={ISO} of=/dev/STICK bs=4M conv=fsync
  Then have the duck boot from it. The same stick serves for any number of ducks, one after the other.

Who can answer a duck's first question on the network, or write its stick, decides what it runs. Keep others off that wire.
Run `duckpond netboot` again when the firmware, the key, a name or a hardware address changes.
"
    );
    text
}
