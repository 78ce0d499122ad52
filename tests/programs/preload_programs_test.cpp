// SPDX-License-Identifier: BSD-2-Clause
// Harmlessness: real programs, run with and without the library, must print the same and end the same way.
// Only lines of the library's own log may come on top.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/hosts/process.h"

namespace {

using namespace testing_support;
namespace fs = std::filesystem;

// `script` runs in bash, in an empty directory whose path is the same both times.
struct Program {
    const char* name;
    const char* script;
    const char* needs = "";  // programs without which the case has no meaning
    // Some programs hang or fail with the sanitizer's run time alone, without the library, or make it print
    // addresses: gdb, set-uid programs (its leak check), cancelled threads, vforked children.
    bool under_sanitizers = true;
};

void PrintTo(const Program& p, std::ostream* out) { *out << p.name; }

const Program kPrograms[] = {
    {"ls", "mkdir -p a/b; touch a/1 a/b/2; ls -lR --time-style=+ . ; ls /nonexistent"},
    {"bash_pipes", R"(set -o pipefail
seq 1000 | grep 7 | tail -n 2 | (read x; echo "got $x"; cat)
exec 7>out 8<&0; echo to seven >&7; exec 7>&-; cat out
echo x >&7
cat <(echo one) <(echo two) | tee >(cat >third) | wc -l; sleep 0.2; cat third
{ echo err >&2; echo out; } 2>&1 | sort
exec 200>lock; ls -l /proc/self/fd/200 >/dev/null; echo $?)"},
    {"bash_traps_and_jobs", R"(trap 'echo caught USR1' USR1; trap 'echo leaving' EXIT
kill -USR1 $$
set -m
sleep 30 & until grep -q sleep /proc/$!/comm; do :; done; kill %1; wait %1; echo "job $?"
sleep 0.1 & jobs; wait; jobs
(trap '' TERM; kill -TERM $BASHPID; echo survived)
{ (kill -KILL $BASHPID); } 2>/dev/null; echo "killed $?"
timeout 0.2 sleep 5; echo "timeout $?"
coproc cat; echo hello >&${COPROC[1]}; read -r line <&${COPROC[0]}; echo "$line"
exit 5)"},
    {"bash_udp", "exec 3<>/dev/udp/127.0.0.1/9; echo opened $?; echo x >&3; echo sent $?; exec 3>&-"},
    {"dash", "dash -c 'x=$(echo a | tr a b); echo $x; cat <<E | sort\nz\ny\nE\nkill -TERM $$'"},
    {"python_sockets", R"(python3 - <<'E'
import socket, select, struct, threading, subprocess, os, signal
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", 0))
c = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); c.connect(s.getsockname())
c.send(b"one"); print(s.recvfrom(100)[0])
c.sendmsg([b"two", b"three"]); print(s.recvmsg(100, 100)[0])
s.settimeout(0.05)
try: s.recv(1)
except socket.timeout as e: print("timeout", e)
try: c.sendto(b"x" * 70000, s.getsockname())
except OSError as e: print(e)
l = socket.create_server(("127.0.0.1", 0))
def serve():
    k, _ = l.accept()
    with k, k.makefile("rwb") as f:
        for line in f: f.write(line.upper()); f.flush()
t = threading.Thread(target=serve); t.start()
k = socket.create_connection(l.getsockname()); f = k.makefile("rwb")
f.write(b"abc\n"); f.flush(); print(f.readline()); f.close(); k.close(); t.join()
a, b = socket.socketpair(); socket.send_fds(a, [b"fd"], [s.fileno()]); m = socket.recv_fds(b, 10, 4)
d = socket.socket(fileno=m[1][0]); c.send(b"passed"); print(m[0], d.recv(10))
p = select.poll(); p.register(d, select.POLLIN); print(p.poll(10)); c.send(b"z")
print([e for _, e in p.poll(1000)])
e = select.epoll(); e.register(d, select.EPOLLIN); print([x for _, x in e.poll(1)]); print(d.recv(9))
print(subprocess.run(["cat"], input=b"in", capture_output=True).stdout)
print(subprocess.run("exit 3", shell=True).returncode)
r = os.fork()
if r == 0:
    c.send(b"child"); os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(r, 0)[1]), s.recv(10))
for x in (s, c, d): x.close()
print(socket.getaddrinfo("localhost", 80, type=socket.SOCK_DGRAM)[-1][4])
E)",
     "python3"},
    {"python_asyncio", R"(python3 - <<'E'
import asyncio
class Echo(asyncio.DatagramProtocol):
    def connection_made(self, t): self.t = t
    def datagram_received(self, d, a): self.t.sendto(d[::-1], a)
class Client(asyncio.DatagramProtocol):
    def __init__(self): self.q = asyncio.Queue()
    def datagram_received(self, d, a): self.q.put_nowait(d)
async def tcp(r, w):
    w.write((await r.readline()).upper()); await w.drain(); w.close()
async def main():
    loop = asyncio.get_running_loop()
    t, _ = await loop.create_datagram_endpoint(Echo, ("127.0.0.1", 0))
    u, c = await loop.create_datagram_endpoint(Client, remote_addr=t.get_extra_info("sockname"))
    for i in range(50):
        u.sendto(b"n%d" % i); assert await c.q.get() == (b"n%d" % i)[::-1]
    s = await asyncio.start_server(tcp, "127.0.0.1", 0)
    async def ask(i):
        r, w = await asyncio.open_connection(*s.sockets[0].getsockname())
        w.write(b"line %d\n" % i); x = await r.readline(); w.close(); return x
    print(await asyncio.gather(*(ask(i) for i in range(20))))
    p = await asyncio.create_subprocess_exec("echo", "sub", stdout=asyncio.subprocess.PIPE)
    print(await p.communicate(), p.returncode)
    print(await loop.run_in_executor(None, lambda: 6 * 7))
    t.close(); u.close(); s.close()
asyncio.run(main())
E)",
     "python3"},
    {"python_multiprocessing", R"(cat > m.py <<'E'
import multiprocessing as mp, socket, sys
def work(i):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("127.0.0.1", 0))
    s.sendto(b"%d" % i, s.getsockname()); return int(s.recv(10)) ** 2
if __name__ == "__main__":
    keep = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); keep.bind(("127.0.0.1", 0))
    for how in ("fork", "spawn"):
        with mp.get_context(how).Pool(3) as p: print(how, p.map(work, range(10)))
E
python3 m.py)",
     "python3"},
    {"git",
     R"(export GIT_CONFIG_NOSYSTEM=1 HOME=$PWD
export GIT_AUTHOR_DATE='2020-01-01T00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00Z'
git init -q -b main r; cd r; git config user.name n; git config user.email e@x
for i in 1 2 3; do seq $i 100 > f; git add f; git commit -q -m "c$i"; done
git log --oneline; git gc -q --prune=now; git fsck
cd ..; git clone -q r s 2>&1; git -C s rev-parse HEAD; git -C s diff HEAD~1 | head -5)",
     "git"},
    {"curl_from_python", R"(mkdir w; seq 50000 > w/file; touch port
python3 -u -m http.server --bind 127.0.0.1 --directory w 0 >port 2>/dev/null & server=$!
until grep -q port port; do sleep 0.05; done
port=$(sed 's/.*port \([0-9]*\).*/\1/' port)
curl -sS "http://127.0.0.1:$port/file" | md5sum
curl -sS -o /dev/null -w '%{http_code}\n' "http://127.0.0.1:$port/nothing"
curl -sS "http://127.0.0.1:$port/file" "http://localhost:$port/file" | wc -c
curl -sS http://127.0.0.1:1/ 2>/dev/null; echo "refused $?"
kill $server; wait $server; echo "server $?")",
     "python3 curl", false},
    {"tar_gzip_xz",
     "mkdir d; for i in $(seq 50); do seq $i 300 >d/$i; done; tar --sort=name --mtime=@0 -czf t.gz d; "
     "gzip -dc t.gz | md5sum; tar xzf t.gz -C /dev/null; echo $?; tar tzf t.gz | tail -1; "
     "xz -9k t.gz && xz -t t.gz.xz; echo $?; bzip2 -k d/7; bunzip2 -c d/7.bz2 | md5sum"},
    {"find_xargs",
     "mkdir -p a/b/c; touch a/{1..40} a/b/{1..40}; find a -type f | sort | xargs -P 3 -n 7 sh -c 'echo $#' x "
     "| "
     "sort -n | uniq -c; find a -name 7 -exec echo {} +; find a -delete; ls"},
    {"make",
     R"(printf 'all: a b c\n\t@cat a b c\n%%:\n\t@sleep 0.05; echo $@ > $@\nfail:\n\t@exit 3\n' > Makefile
make -j3; make fail; echo $?)",
     "make"},
    {"gcc",
     "printf '#include <stdio.h>\\nint main(){puts(\"built\");return 4;}' > x.c; gcc -O2 -Wall -o x x.c; "
     "./x; echo $?; "
     "gcc -c -o y.o nothing.c; echo $?",
     "gcc"},
    {"perl", R"(perl -MIO::Socket::INET -MSocket -e '
my $s = IO::Socket::INET->new(Proto => "udp", LocalAddr => "127.0.0.1");
my $c = IO::Socket::INET->new(Proto => "udp", PeerAddr => "127.0.0.1", PeerPort => $s->sockport);
print $c "over stdio\n"; $c->flush; $c->send("datagram"); for (1..2) { $s->recv(my $b, 100); print "$b\n"; }
my $pid = fork; if (!$pid) { $c->send("child"); exit 3 } waitpid $pid, 0; print $? >> 8, "\n";
$s->recv(my $b, 100); print "$b\n";
$SIG{ALRM} = sub { print "alarm\n" }; alarm 1; $s->recv($b, 1); print `echo back`;
open F, "-|", "seq 3"; print <F>; close F; exec "sh", "-c", "exit 9"')",
     "perl"},
    {"awk_sed_sort", R"(seq 2000 | awk '{s+=$1; print $1 % 7 | "sort -n | uniq -c"} END {print s}'
seq 10 | sed -n '/3/,/5/p;$='
seq 100000 | sort -R --random-source=/dev/zero | sort -n -S 1M --parallel=2 | md5sum
echo x | sed 's/x/[&]/w out'; cat out
awk 'BEGIN { while (("echo a b" | getline l) > 0) print l; exit 6 }')"},
    {"dd_and_tools",
     "dd if=/dev/zero of=z bs=4k count=100 2>/dev/null; md5sum z; dd if=z bs=1 count=3 2>&1 >/dev/null | "
     "head -2; split -b 100k z; "
     "ls; diff z xaa; echo $?; cp -r . /dev/null/x; echo $?; od -An -tx1 -N4 z; tail -c 5 z | wc -c",
     "", false},
    {"openssl",
     "openssl version; printf abc | openssl dgst -sha256; openssl enc -aes-128-cbc -K 00 -iv 00 -in "
     "/etc/hostname 2>/dev/null | "
     "openssl enc -d -aes-128-cbc -K 00 -iv 00 2>/dev/null | cmp - /etc/hostname; echo $?; openssl rand 16 | "
     "wc -c",
     "openssl"},
    {"ssh_keygen",
     "ssh-keygen -q -t ed25519 -N '' -C c -f k; echo $?; ssh-keygen -y -f k | cut -c1-20; ssh-keygen -y -f "
     "none; echo $?; "
     "ssh -o BatchMode=yes -o ConnectTimeout=2 -F /dev/null -p 1 127.0.0.1; echo $?",
     "ssh-keygen ssh"},
    {"node", R"(node -e '
const d = require("dgram"), net = require("net"), cp = require("child_process");
const s = d.createSocket("udp4"), c = d.createSocket("udp4");
s.on("message", (m, r) => { console.log("" + m); s.send("re " + m, r.port, r.address); });
c.on("message", m => { console.log("" + m); s.close(); c.close(); });
s.bind(0, "127.0.0.1", () => c.send("hello", s.address().port, "127.0.0.1"));
const t = net.createServer(k => k.pipe(k)).listen(0, "127.0.0.1", () => {
  const k = net.connect(t.address().port, "127.0.0.1"); k.end("tcp");
  k.on("data", x => console.log("" + x)); k.on("close", () => t.close()); });
process.on("exit", () => { console.log(cp.execSync("echo sub") + ""); process.exitCode = 5; });' | sort
echo ${PIPESTATUS[0]})",
     "node"},
    {"sqlite_bc_jq",
     "sqlite3 d.db 'create table t(x); insert into t values(1),(2); select sum(x) from t'; echo '2^200' | "
     "bc; "
     "echo '{\"a\":[1,2]}' | jq -c '.a|add'",
     "sqlite3 bc jq"},
    {"vim", "printf 'b\\na\\n' > f; vim -u NONE -es -c '%sort' -c 'wq' f; cat f", "vim"},
    {"gdb_strace",
     "strace -f -o log -e trace=none true; echo $?; gdb -q -batch -nx -ex 'print 6*7' | tail -1",
     "strace gdb", false},
    {"wget", R"(touch port; python3 -u -m http.server --bind 127.0.0.1 0 >port 2>/dev/null & server=$!
until grep -q port port; do sleep 0.05; done
port=$(sed 's/.*port \([0-9]*\).*/\1/' port); echo content >file
wget -q -O - http://127.0.0.1:$port/file; wget -q -O - http://127.0.0.1:$port/none; echo $?
kill $server; wait $server; echo $?)",
     "wget python3"},
    {"static_binary",
     "printf '#include <stdio.h>\\n#include <sys/socket.h>\\nint "
     "main(){printf(\"%%d\\\\n\",socket(2,2,0)>2);return 3;}' > x.c; "
     "gcc -static -o x x.c; ./x; echo $?",
     "gcc"},
    {"setuid_binary",
     R"(mkdir p; chmod 755 p
cp "$APPS/app_preload_secure" p/app && chown 65534 p/app && chmod 4755 p/app; p/app; echo $?)",
     "", false},
    {"unreadable_environment",
     "env -i LD_PRELOAD=\"$LD_PRELOAD\" /bin/sh -c 'echo fine'; (ulimit -n 6; echo limited; exec "
     "5</dev/null; cat <&5); "
     "(exec 0<&- 1>&- 2>&-; ls); echo $?"},
    {"fds", "$APPS/app_preload_fds"},
    {"close_all", "$APPS/app_preload_close_all"},
    {"processes", "$APPS/app_preload_processes", "", false},
    {"syscalls", "$APPS/app_preload_syscall"},
    {"threads", "$APPS/app_preload_threads", "", false},
    {"early", "$APPS/app_preload_early"},
    {"signals", "$APPS/app_preload_signals; echo $?"},
    {"file_limit", "ulimit -f 64; $APPS/app_preload_server; $APPS/app_preload_cycles"},
    {"server", "$APPS/app_preload_server"},
    {"cycles", "$APPS/app_preload_cycles"},
};

std::string without_log(const std::string& text) {
    std::istringstream in(text);
    std::string line, rest;
    while (std::getline(in, line))
        if (!line.starts_with("VMA ")) rest += line + "\n";
    return rest;
}

class PreloadPrograms : public ::testing::TestWithParam<Program> {
  protected:
    void SetUp() override {
        char name[] = "/tmp/vma-programs-XXXXXX";
        ASSERT_NE(mkdtemp(name), nullptr);
        chmod(name, 0755);
        dir_ = name;
    }
    void TearDown() override { fs::remove_all(dir_); }

    Exit run(bool preload) {
        fs::path work = dir_ / "work";
        fs::remove_all(work);
        fs::create_directory(work);
        RunOptions options;
        options.preload = preload;
        options.env = {"APPS=" VMA_APPS_DIR, "LC_ALL=C", "PYTHONDONTWRITEBYTECODE=1",
                       "HOME=" + work.string()};
        std::string script = "cd " + work.string() + " || exit 99\n" + GetParam().script;
        return Process::run({"bash", "-c", script}, options).wait(milliseconds(90000));
    }

    fs::path dir_;
};

TEST_P(PreloadPrograms, BehaveTheSame) {
    if (sanitized() && !GetParam().under_sanitizers) GTEST_SKIP() << "not with a preloaded sanitizer";
    std::istringstream needs(GetParam().needs);
    for (std::string program; needs >> program;) {
        bool found = false;
        tool({"which", program}, &found);
        ASSERT_TRUE(found) << program << " is not installed (tools/setup installs what the tests need)";
    }
    Exit plain = run(false);
    Exit with = run(true);
    ASSERT_FALSE(plain.timed_out) << plain.out << plain.err;
    ASSERT_FALSE(with.timed_out) << with.out << with.err;
    EXPECT_EQ(with.out, plain.out);
    EXPECT_EQ(with.code, plain.code);
    EXPECT_EQ(without_log(with.err), without_log(plain.err));
    EXPECT_FALSE(plain.out.empty()) << "the case shows nothing; stderr: " << plain.err;
}

INSTANTIATE_TEST_SUITE_P(, PreloadPrograms, ::testing::ValuesIn(kPrograms),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
