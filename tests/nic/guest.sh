#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Inside the guest, after init.sh: for each wire the namespaces NAME.a and NAME.b, each with the device at one
# end of it, and the addresses 198.18.N.1 and 198.18.N.2; then the steps.
. "$(dirname "$0")/../support/guest/steps.sh"

# by_mac MAC: the interface's name, if there is one
by_mac() {
    local path
    for path in /sys/class/net/*; do
        if [[ -e $path/address && $(<"$path/address") == "$1" ]]; then echo "${path##*/}"; return; fi
    done
}

# wire NAME NUMBER DEVICE-A DEVICE-B
wire() {
    local name=$1 number=$2 side device host=1
    for side in a b; do
        device=$3
        ip netns add "$name.$side"
        ip link set "$device" netns "$name.$side" name eth0
        ip -n "$name.$side" link set lo up
        ip -n "$name.$side" addr add "198.18.$number.$host/24" dev eth0
        ip -n "$name.$side" link set eth0 up
        host=2
        shift
    done
}

# bond NAME NUMBER OPTION...: a bond of two ports at both ends
bond() {
    local name=$1 number=$2 side port host=1
    shift 2
    for side in a b; do ip netns add "$name.$side"; done
    for port in 0 1; do
        ip link add port$port netns "$name.a" type veth peer name port$port netns "$name.b"
    done
    for side in a b; do
        ip -n "$name.$side" link set lo up
        ip -n "$name.$side" link add bond0 type bond miimon 100 "$@"
        for port in 0 1; do ip -n "$name.$side" link set port$port master bond0; done
        for port in port0 port1 bond0; do ip -n "$name.$side" link set $port up; done
        ip -n "$name.$side" addr add "198.18.$number.$host/24" dev bond0
        host=2
    done
}

# wire_of NAME NUMBER: of the guest's devices, if it has them
wire_of() {
    local a b
    a=$(by_mac "52:54:00:00:0$2:01") b=$(by_mac "52:54:00:00:0$2:02")
    [[ -z $a || -z $b ]] || wire "$1" "$2" "$a" "$b"
}

wire_of virtio 1
wire_of vmxnet3 2
wire_of igb 5
wire_of offloads 6
bond backup 3 mode active-backup
bond lacp 4 mode 802.3ad lacp_rate fast xmit_hash_policy layer3+4
run_steps
