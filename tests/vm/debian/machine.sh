# What host.nix and the machine under QEMU agree about, for scripts/test-vm and for check.
# shellcheck shell=bash disable=SC2034

processors=4
memory=6144            # MiB: the kernel finds no 1 GiB pages in much less

# host.nix sets these.
huge_pages=2           # of 1 GiB each
isolated=2-3
watchdog=30s
bound=0000:00:05.0     # the module hands it to vfio-pci
duck=duck-01
duck_mac=52:54:00:00:00:d1

# Another card of the same kind, which stays with the kernel: the duck is behind it, as eth:enp0s6.
kept=0000:00:06.0

prompt='What is 12 + 7?'

# Where the system's activation puts what it decrypts.
key=/run/duckpond-secrets/duckpond-key
api_keys=/run/duckpond-secrets/duckpond-api-keys
