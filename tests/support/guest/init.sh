#!/bin/busybox sh
# SPDX-License-Identifier: BSD-2-Clause
# The first process of the guest, in its initramfs: loads modules and goes on in the host's file system.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
while read -r module; do
    /bin/busybox insmod "/modules/$module" || echo "guest: $module cannot be loaded"
done </modules/order
options=trans=virtio,version=9p2000.L,msize=512000
/bin/busybox mount -t 9p -o "$options,ro,cache=loose" host /host || echo "guest: no file system of the host"
/bin/busybox mount -t tmpfs -o mode=755 run /host/run
/bin/busybox mkdir -p /host/run/results /host/run/tmp
/bin/busybox mount -t 9p -o "$options,cache=none" results /host/run/results ||
    echo "guest: no directory for results"
for directory in proc sys dev; do /bin/busybox mount -o move "/$directory" "/host/$directory"; done
script=$(/bin/busybox sed 's/.*guest_script=\([^ ]*\).*/\1/' /host/proc/cmdline)
exec /bin/busybox switch_root /host /bin/bash "$script"
