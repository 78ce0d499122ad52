#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Inside the guest, after init.sh: two RDMA devices, then the steps.
. "$(dirname "$0")/../support/guest/steps.sh"

# Both ends of the wire in one namespace, since rxe of this kernel knows only the first one. Local addresses
# are looked up last for what is sent, so that it takes the wire, and first for what arrives there.
addresses=(198.18.9.1 198.18.9.2)
ip link add veth0 type veth peer name veth1
# The rest by one process: starting one takes the emulator's guest long.
commands="link set lo up
rule add pref 300 lookup local
rule del pref 0
"
for i in 0 1; do
    echo 1 >/proc/sys/net/ipv4/conf/veth$i/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/veth$i/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/veth$i/arp_ignore
    commands+="addr add ${addresses[i]}/24 dev veth$i
link set veth$i up mtu 4200
rule add pref 100 iif veth$i lookup local
rule add pref 200 to ${addresses[1 - i]} lookup $((100 + i))
route add ${addresses[1 - i]} dev veth$i src ${addresses[i]} table $((100 + i))
"
done
ip -batch - <<<"$commands"
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for i in 0 1; do rdma link add rxe$i type rxe netdev veth$i; done

run_steps
