#!/bin/busybox sh
# First process of the guest: loads modules, takes the host's files as its root, read-only with a layer in memory above,
# runs the script that the kernel's command line names, and powers off.
B=/bin/busybox
$B mkdir -p /proc /sys /dev /host /layer /root
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
$B mount -t devtmpfs dev /dev
say() { echo "$*" > /dev/ttyS0; }
for module in /modules/*.ko; do $B insmod "$module" || say "cannot load $module"; done
$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=loose,ro host /host || say 'cannot mount the files of the host'
$B mount -t tmpfs -o size=75% layer /layer
$B mkdir /layer/upper /layer/work
$B mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root || say 'cannot make the root of the guest'
for place in proc sys dev; do $B mount --move /$place /root/$place; done
$B mkdir -p /root/dev/shm /root/dev/pts
$B mount -t tmpfs shm /root/dev/shm
$B mount -t devpts pts /root/dev/pts
folder=$($B sed -n 's/.*soft_roce=\([^ ]*\).*/\1/p' /root/proc/cmdline)
for line in ttyS0 ttyS1 ttyS2; do $B stty -F /root/dev/$line raw -echo; done
$B chroot /root /bin/sh "$folder/start.sh" < /root/dev/null > /root/dev/ttyS0 2>&1
$B poweroff -f
