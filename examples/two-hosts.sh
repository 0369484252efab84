#!/bin/sh
# Runs a program on two hosts that are namespaces of this machine: networks, /dev/shm and host names of their own, joined by
# a cable. Needs root, unshare, nsenter, mount and ip. Of each host the rest of the words is what weftline run takes:
#   sudo sh two-hosts.sh -n 2 program.mjs
set -eu
weftline=${WEFTLINE:-npx weftline}
WEFTLINE_TOKEN=${WEFTLINE_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}
export WEFTLINE_TOKEN

# A process holds the namespaces of each host, until this script ends.
hold() {
  unshare --net --mount --uts --ipc sh -c "mount -t tmpfs tmpfs /dev/shm && hostname $1 && ip link set lo up && exec sleep 86400" &
}
hold host-0
first=$!
hold host-1
second=$!
trap 'kill $first $second 2>/dev/null' EXIT
on() { # on PROCESS COMMAND...
  process=$1
  shift
  nsenter --target "$process" --net --mount --uts --ipc --wd="$PWD" "$@"
}
# A command for a process that has not left this machine's network yet would change this machine.
here=$(readlink /proc/self/ns/net)
ready() {
  [ "$(readlink "/proc/$1/ns/net")" != "$here" ] && on "$1" ip link show lo up 2>/dev/null | grep -q lo
}
for process in $first $second; do
  tries=0
  until ready "$process"; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { echo 'two-hosts: the namespaces were not made' >&2; exit 1; }
    sleep 0.1
  done
done

on "$first" ip link add cable type veth peer name cable netns "$second"
on "$first" ip addr add 10.0.0.1/24 dev cable
on "$second" ip addr add 10.0.0.2/24 dev cable
on "$first" ip link set cable up
on "$second" ip link set cable up

on "$second" $weftline run --nnodes 2 --node-rank 1 --master 10.0.0.1:29500 "$@" &
other=$!
status=0
on "$first" $weftline run --nnodes 2 --node-rank 0 --master 10.0.0.1:29500 "$@" || status=$?
wait $other || status=$?
exit $status
