# SPDX-License-Identifier: BSD-2-Clause
# Inside the guest, after init.sh: the script of a suite reads this file first, makes its devices, and ends
# with run_steps: those that guest.py wrote to results/steps.sh.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/run/tmp TMPDIR=/run/tmp LC_ALL=C
results=/run/results
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd

# The guest is slow, and on a busy host slower: starting a program takes longer than most programs run. So
# what waits here is made of bash alone, and patient.
mkfifo /run/nothing && exec {nothing}<>/run/nothing
pause() { read -rt 0.1 -u "$nothing" || true; }

# is_listening PORT FILE...: TCP's (state 0A) or UDP's (07) sockets of /proc/net
is_listening() {
    local port file line
    printf -v port %04X "$1"
    shift
    for file; do
        while read -ra line; do
            [[ ${line[1]} == *:"$port" && ${line[3]} == @(0A|07) ]] && return
        done <"$file"
    done
    return 1
}

# is_ready KIND:PORT
is_ready() {
    case $1 in
        tcp:*) is_listening "${1#*:}" /proc/net/tcp /proc/net/tcp6 ;;
        udp:*) is_listening "${1#*:}" /proc/net/udp /proc/net/udp6 ;;
        cm:*) rdma resource show cm_id | grep -q "LISTEN.*:${1#*:} " ;;
        *) true ;;
    esac
}

# step NAME SECONDS READY STOP COMMAND SERVER: files NAME.out, .err, .code, .seconds, and NAME.server.*
step() {
    local name=$results/$1 seconds=$2 ready=$3 stop=$4 server=$6 pid='' begin=${EPOCHREALTIME/./} limit
    local -a words
    : >"$name.begun"
    if [[ -n $server ]]; then
        eval "words=($server)"
        timeout -s "$stop" -k 10 $((2 * seconds)) "${words[@]}" \
            >"$name.server.out" 2>"$name.server.err" </dev/null &
        pid=$!
        for ((limit = SECONDS + seconds; SECONDS < limit; )); do
            { is_ready "$ready" || ! kill -0 $pid; } 2>/dev/null && break
            pause
        done
    fi
    eval "words=($5)"
    timeout -k 10 "$seconds" "${words[@]}" >"$name.out" 2>"$name.err" </dev/null
    echo $? >"$name.code"
    if [[ -n $server ]]; then
        for ((limit = SECONDS + seconds / 4; SECONDS < limit; )); do
            kill -0 $pid 2>/dev/null || break
            pause
        done
        # timeout passes the signal on.
        kill -s "$stop" $pid 2>/dev/null
        wait $pid
        echo $? >"$name.server.code"
    fi
    printf -v begin %07d $((${EPOCHREALTIME/./} - begin))
    echo "${begin::-6}.${begin: -6}" >"$name.seconds"
}

run_steps() {
    . "$results/steps.sh"
    : >"$results/done"
    sync
    echo b >/proc/sysrq-trigger
    sleep 10
}
