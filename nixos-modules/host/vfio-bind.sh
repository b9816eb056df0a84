#!/bin/sh
# Hands PCI functions to vfio-pci, each by its address and nothing else: another card with the same id stays with the kernel.
#   vfio-bind bind ADDRESS...      whatever drives a function now lets go of it
#   vfio-bind release ADDRESS...   the kernel's own driver may have it back
# Everything is tried; faults are told at the end. DUCKPOND_SYS stands in for /sys in tests.
set -u
sys=${DUCKPOND_SYS:-/sys}
action=${1:-}
case $action in
    bind | release) shift ;;
    *) echo "usage: vfio-bind bind|release ADDRESS..." >&2; exit 2 ;;
esac
failed=0
fault() {
    echo "vfio-bind: $*" >&2
    failed=1
}
# The driver of a function, or nothing.
driver_of() {
    if [ -e "$1/driver" ]; then basename "$(readlink "$1/driver")"; fi
}

if [ "$action" = bind ] && [ ! -d "$sys/bus/pci/drivers/vfio-pci" ]; then
    modprobe vfio-pci || fault "the module vfio-pci cannot be loaded"
fi
for address in "$@"; do
    device=$sys/bus/pci/devices/$address
    if [ ! -d "$device" ]; then
        fault "no card at $address: lspci -D shows those there are"
        continue
    fi
    if [ "$action" = bind ]; then
        if [ ! -e "$device/iommu_group" ] && [ "$(cat "$sys/module/vfio/parameters/enable_unsafe_noiommu_mode" 2>/dev/null)" != Y ]; then
            fault "$address is in no IOMMU group: turn on VT-d or AMD-Vi in the BIOS, and intel_iommu=on on the kernel's command line"
            continue
        fi
        if [ "$(driver_of "$device")" = vfio-pci ]; then
            continue
        fi
        echo vfio-pci > "$device/driver_override" || fault "$address: its driver cannot be chosen"
        if [ -e "$device/driver" ]; then
            echo "$address" > "$device/driver/unbind" || fault "$address: $(driver_of "$device") does not let go of it"
        fi
        echo "$address" > "$sys/bus/pci/drivers_probe" || fault "$address: no driver takes it"
        if [ "$(driver_of "$device")" != vfio-pci ]; then
            fault "$address is with $(driver_of "$device"), not with vfio-pci"
        fi
    else
        echo > "$device/driver_override" || fault "$address: its driver cannot be chosen"
        if [ "$(driver_of "$device")" = vfio-pci ]; then
            echo "$address" > "$device/driver/unbind" || fault "$address: vfio-pci does not let go of it"
            echo "$address" > "$sys/bus/pci/drivers_probe" || true
        fi
    fi
done
exit $failed
