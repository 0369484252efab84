# In the guest's root: makes the RDMA devices, runs the command and tells its exit status on the first serial line.
# $folder/settings.sh says how: MARK, LINKS (one, pair), NETEM, and the environment; $folder/command.sh is the command.
folder=${0%/*}
. "$folder/settings.sh"

address() { # NAME ADDRESS
  ip link set "$1" mtu 4500 up
  ip address add "$2/24" dev "$1"
}

ip link set lo up
ulimit -l unlimited
case $LINKS in
  one)
    rdma link add rxe0 type rxe netdev lo ;;
  pair)
    # Both ends are in one network namespace: with kernel 6.1 no rxe device came up in a second one. The kernel takes
    # packets that come from its own address off a wire only if it is told to.
    ip link add veth0 type veth peer name veth1
    for name in veth0 veth1; do
      echo 1 > /proc/sys/net/ipv4/conf/$name/accept_local
      echo 0 > /proc/sys/net/ipv4/conf/$name/rp_filter
    done
    echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
    address veth0 10.77.0.1
    address veth1 10.77.0.2
    for end in 0 1; do
      if [ -n "$NETEM" ]; then tc qdisc add dev veth$end root netem limit 10000 $NETEM; fi
      rdma link add rxe$end type rxe netdev veth$end
    done ;;
esac || { echo "$MARK failed cannot make the RDMA devices" > /dev/ttyS0; exec sleep 60; }

echo "$MARK started" > /dev/ttyS0
/bin/sh "$folder/command.sh" < /dev/null > /dev/ttyS1 2> /dev/ttyS2
status=$?
# Closing a serial line waits until all of it was sent.
echo "$MARK status $status" > /dev/ttyS0
exec busybox poweroff -f
