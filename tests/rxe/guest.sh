#!/bin/bash
# SPDX-License-Identifier: BSD-2-Clause
# Inside the guest, after init.sh: two RDMA devices, then the steps that guest.py wrote to results/steps.sh.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/tmp TMPDIR=/run/tmp LC_ALL=C
results=/run/results
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm

# Both ends of the wire in one namespace, since rxe of this kernel knows only the first one. Local addresses are looked up last
# for what is sent, so that it takes the wire, and first for what arrives there.
addresses=(198.18.9.1 198.18.9.2)
ip link set lo up
ip link add veth0 type veth peer name veth1
ip rule add pref 300 lookup local
ip rule del pref 0
for i in 0 1; do
    echo 1 >/proc/sys/net/ipv4/conf/veth$i/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/veth$i/rp_filter
    echo 1 >/proc/sys/net/ipv4/conf/veth$i/arp_ignore
    ip addr add "${addresses[i]}/24" dev veth$i
    ip link set veth$i up mtu 4200
    ip rule add pref 100 iif veth$i lookup local
    ip rule add pref 200 to "${addresses[1 - i]}" lookup $((100 + i))
    ip route add "${addresses[1 - i]}" dev veth$i src "${addresses[i]}" table $((100 + i))
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for i in 0 1; do rdma link add rxe$i type rxe netdev veth$i; done

# is_ready KIND:PORT
is_ready() {
    case $1 in
        tcp:*) [[ -n $(ss -Hltn "sport = :${1#*:}") ]] ;;
        udp:*) [[ -n $(ss -Hlun "sport = :${1#*:}") ]] ;;
        cm:*) rdma resource show cm_id | grep -q "LISTEN.*:${1#*:} " ;;
        *) true ;;
    esac
}

# step NAME SECONDS READY STOP COMMAND SERVER: files NAME.out, .err, .code, .seconds, and NAME.server.*
step() {
    local name=$results/$1 seconds=$2 ready=$3 stop=$4 command=$5 server=$6 pid i begin=${EPOCHREALTIME/./}
    if [[ -n $server ]]; then
        { timeout -s "$stop" -k 3 $((seconds + 10)) bash -c "exec $server" >"$name.server.out" 2>"$name.server.err" </dev/null
          echo $? >"$name.server.code"; } &
        pid=$!
        for ((i = 0; i < 100; i++)); do
            { is_ready "$ready" || ! kill -0 $pid; } 2>/dev/null && break
            sleep 0.1
        done
    fi
    timeout -k 3 "$seconds" bash -c "exec $command" >"$name.out" 2>"$name.err" </dev/null
    echo $? >"$name.code"
    if [[ -n $server ]]; then
        for ((i = 0; i < 50; i++)); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done
        # timeout passes the signal on.
        for child in $(pgrep -P $pid); do kill -s "$stop" "$child"; done
        wait $pid
    fi
    i=$((${EPOCHREALTIME/./} - begin))
    printf '%d.%06d\n' $((i / 1000000)) $((i % 1000000)) >"$name.seconds"
}

. "$results/steps.sh"
: >"$results/done"
sync
echo b >/proc/sysrq-trigger
sleep 10
