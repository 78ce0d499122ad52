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

# Commands of ip, one a line: here, and in each namespace. A process for each command takes the emulator's
# guest ten seconds.
here='' hosts=()
declare -A inside

# host NAME
host() {
    here+="netns add $1"$'\n'
    hosts+=("$1")
    inside[$1]="link set lo up"$'\n'
}

# wire NAME NUMBER DEVICE-A DEVICE-B
wire() {
    local name=$1 number=$2 side last=1
    for side in a b; do
        host "$name.$side"
        here+="link set $3 netns $name.$side name eth0"$'\n'
        inside[$name.$side]+="addr add 198.18.$number.$last/24 dev eth0"$'\n'"link set eth0 up"$'\n'
        last=2
        shift
    done
}

# bond NAME NUMBER OPTION...: a bond of two ports at both ends
bond() {
    local name=$1 number=$2 side port last=1
    shift 2
    for side in a b; do
        host "$name.$side"
        inside[$name.$side]+="link add bond0 type bond miimon 100 $*"$'\n'
        for port in port0 port1; do inside[$name.$side]+="link set $port master bond0"$'\n'; done
        for port in port0 port1 bond0; do inside[$name.$side]+="link set $port up"$'\n'; done
        inside[$name.$side]+="addr add 198.18.$number.$last/24 dev bond0"$'\n'
        last=2
    done
    for port in port0 port1; do
        here+="link add $port netns $name.a type veth peer name $port netns $name.b"$'\n'
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
ip -batch - <<<"$here"
for name in "${hosts[@]}"; do ip -n "$name" -batch - <<<"${inside[$name]}"; done
run_steps
