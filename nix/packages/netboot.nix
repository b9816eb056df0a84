# Boot images of a pond's ducks. They hold the firmware and the pond's public key, and no secret: none is within reach of a build.
{
  lib,
  runCommand,
  grub2,
  grub2_efi,
  mtools,
  xorriso,
  duckpond,
  duck-firmware,
  # The description's file, with the public key in it, and the pond's name.
  description,
  name,
}:
runCommand "duckpond-netboot-${name}"
{
  nativeBuildInputs = [
    mtools
    xorriso
  ];
}
''
  # Each of nixpkgs' two packages of GRUB knows one platform. The program for a BIOS comes from one, all else from the other; the disc
  # starts under UEFI only.
  mkdir grub
  printf '%s\n' '#!/bin/sh' \
    'case " $* " in *" i386-pc-pxe "*) exec ${grub2}/bin/grub-mkstandalone "$@" ;; esac' \
    'exec ${grub2_efi}/bin/grub-mkstandalone "$@"' > grub/grub-mkstandalone
  ln -s ${grub2_efi}/bin/grub-mkrescue grub/grub-mkrescue
  chmod +x grub/grub-mkstandalone
  export PATH=$PWD/grub:${lib.makeBinPath [mtools xorriso]}:$PATH
  export HOME=$PWD
  mkdir $out
  ${duckpond}/bin/duckpond netboot $out --firmware ${duck-firmware}/share/duckpond/nest.elf --pond ${description}
''
