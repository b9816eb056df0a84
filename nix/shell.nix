# What working on the project needs: `nix develop`.
{
  mkShell,
  cargo,
  clippy,
  rustc,
  rustfmt,
  age,
  qemu,
  grub2_efi,
  mtools,
  xorriso,
  jq,
}:
mkShell {
  packages = [
    cargo
    clippy
    rustc
    rustfmt
    age
    qemu
    grub2_efi
    mtools
    xorriso
    jq
  ];
}
