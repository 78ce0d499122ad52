# SPDX-License-Identifier: BSD-2-Clause
"""Debian's kernel, booted in QEMU, with drivers and devices that the host does not have.

The kernel package is downloaded and unpacked below the build directory, nothing is installed. The guest sees
the host's root file system read-only over 9p, so every program of the host and of the build directory runs
there under the same path; what it writes goes to a directory of results, over 9p as well.

A suite (Suite) says which modules and which devices its guest has, and has a script that sets them up. One
boot runs a list of steps, one after the other. KVM is not used: everything is emulated, so only functions can
be tested there, never speed.
"""
import ctypes
import dataclasses
import fcntl
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
KERNEL_PACKAGE = "linux-image-amd64"         # depends on the current kernel's package
MODULES = ("virtio_pci", "9pnet_virtio", "9p")    # of each guest
# Program that must be there, the Debian package that has it.
NEEDED = (("qemu-system-x86_64", "qemu-system-x86"), ("busybox", "busybox-static"), ("cpio", "cpio"),
          ("depmod", "kmod"),
          ("ip", "iproute2"), ("dpkg-deb", "dpkg"))
# From the start of QEMU to its end, as long as a step or the whole run says nothing else.
GUEST_SECONDS = 480


@dataclasses.dataclass(frozen=True)
class Suite:
    """What a suite's guest is. `script` runs in it (steps.sh); `modules` are loaded before; `devices` are
    further words for QEMU. `programs` and `files` must be there, each with the Debian package that has it."""
    script: pathlib.Path
    modules: tuple
    devices: tuple = ()
    programs: tuple = ()
    files: tuple = ()


class Failure(Exception):
    """The guest could not be prepared or did not run to its end; the text says why."""


@dataclasses.dataclass
class Step:
    """A command of the guest, with a second one running beside it if there is a server.

    `ready` says what the server must have opened before the client starts: "tcp:PORT", "udp:PORT", or
    "cm:PORT" for a listener of RDMA-CM. `seconds` is how long that may take, and how long the client may:
    what only a hung program reaches, since a busy host makes the guest many times slower. `env` goes to both.
    Below /run/results they may write files, see Guest.run(). `stop` is the signal that ends a server that is
    still there a quarter of `seconds` after its client.
    """
    name: str
    command: list
    server: list | None = None
    ready: str = ""
    seconds: int = 120
    env: dict = dataclasses.field(default_factory=dict)
    stop: str = "INT"


@dataclasses.dataclass
class Output:
    """What a command did. `code` is its exit status: 124 when it took too long, None when it was not
    started."""
    code: int | None
    out: str
    err: str
    seconds: float = 0   # of the whole step


def die_with_parent():
    """Runs in the child: a killed test leaves no QEMU behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def run(*command, cwd=None, stdin=None, timeout=120):
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, timeout=timeout,
                          preexec_fn=die_with_parent)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise Failure(f"{' '.join(map(str, command))}: {said}")
    return done.stdout


def find_programs(needed, files):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = {program: shutil.which(program, path=path) for program, _ in needed}
    missing = [f"{program} (Debian package {package})" for program, package in needed if not found[program]]
    missing += [f"{file} (Debian package {package})" for file, package in files
                if not pathlib.Path(file).exists()]
    if missing:
        raise Failure("missing: " + ", ".join(missing) + "; tools/setup installs them")
    return found


def kernel_package():
    """The name of the package with today's kernel."""
    for line in run("apt-cache", "depends", KERNEL_PACKAGE).decode().splitlines():
        words = line.split()
        if words[:1] == ["Depends:"] and words[1].startswith("linux-image-"):
            return words[1]
    raise Failure(f"apt knows no package {KERNEL_PACKAGE}: apt-get update, or not Debian")


class Guest:
    def __init__(self, build_directory, suite):
        """Failure names what is missing."""
        self.suite = suite
        self.programs = find_programs((*NEEDED, *suite.programs), suite.files)
        self.cache = pathlib.Path(build_directory).resolve() / "guest"
        self.cache.mkdir(parents=True, exist_ok=True)

    # The kernel is unpacked once for a build directory, while other suites wait; the initramfs is made once
    # for a suite and a version of its files and these.
    def prepare(self):
        with open(self.cache / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            kernels = sorted(self.cache.glob("kernel/boot/vmlinuz-*"))
            if not kernels:
                self.unpack_kernel()
                kernels = sorted(self.cache.glob("kernel/boot/vmlinuz-*"))
        self.kernel = kernels[-1]
        self.initramfs = self.cache / f"{self.suite.script.parent.name}.cpio"
        sources = (pathlib.Path(__file__), HERE / "init.sh", self.suite.script, self.kernel)
        if not self.initramfs.exists() or self.initramfs.stat().st_mtime < max(f.stat().st_mtime
                                                                               for f in sources):
            self.make_initramfs(self.kernel.name.removeprefix("vmlinuz-"))

    def unpack_kernel(self):
        package = kernel_package()
        try:
            run("apt-get", "download", package, cwd=self.cache, timeout=300)
        except Failure as failure:
            raise Failure(f"the kernel's package cannot be downloaded: {failure}") from failure
        archive = next(self.cache.glob(f"{package}_*.deb"))
        partial = self.cache / "kernel.part"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        # Only what may be needed of 400 MB.
        wanted = ("./boot/vmlinuz-*", "./lib/modules/*/modules.*",
                  "./lib/modules/*/kernel/drivers/infiniband/core/*",
                  "./lib/modules/*/kernel/drivers/infiniband/sw/*", "./lib/modules/*/kernel/drivers/virtio/*",
                  "./lib/modules/*/kernel/drivers/net/veth.ko",
                  "./lib/modules/*/kernel/drivers/net/virtio_net.ko",
                  "./lib/modules/*/kernel/drivers/net/net_failover.ko",
                  "./lib/modules/*/kernel/net/core/failover.ko",
                  "./lib/modules/*/kernel/drivers/net/bonding/*", "./lib/modules/*/kernel/net/tls/*",
                  "./lib/modules/*/kernel/drivers/net/ethernet/intel/e1000e/*",
                  "./lib/modules/*/kernel/drivers/net/ethernet/realtek/8139*",
                  "./lib/modules/*/kernel/drivers/net/mii.ko",
                  "./lib/modules/*/kernel/drivers/net/vmxnet3/*",
                  "./lib/modules/*/kernel/fs/9p/*",
                  "./lib/modules/*/kernel/fs/configfs/*",
                  "./lib/modules/*/kernel/fs/fscache/*", "./lib/modules/*/kernel/fs/netfs/*",
                  "./lib/modules/*/kernel/net/9p/*", "./lib/modules/*/kernel/net/ipv4/*",
                  "./lib/modules/*/kernel/net/ipv6/*", "./lib/modules/*/kernel/lib/*",
                  "./lib/modules/*/kernel/crypto/*", "./lib/modules/*/kernel/arch/x86/crypto/*")
        run("sh", "-c", 'dpkg-deb --fsys-tarfile "$0" | tar -x --wildcards -f - "$@"', archive, *wanted,
            cwd=partial)
        version = next(partial.glob("boot/vmlinuz-*")).name.removeprefix("vmlinuz-")
        run(self.programs["depmod"], "-b", partial, version)
        archive.unlink()
        shutil.rmtree(self.cache / "kernel", ignore_errors=True)
        partial.rename(self.cache / "kernel")

    def make_initramfs(self, version):
        modules = self.cache / "kernel/lib/modules" / version
        needs = {}
        for line in (modules / "modules.dep").read_text().splitlines():
            path, others = line.split(":")
            needs[path] = others.split()
        builtin = {pathlib.Path(line).stem for line in (modules / "modules.builtin").read_text().split()}
        ordered = []
        for name in (*MODULES, *self.suite.modules):
            if name in builtin:
                continue
            path = next((p for p in needs if pathlib.Path(p).name.split(".")[0] == name), None)
            if path is None:
                raise Failure(f"kernel {version} has no module {name}")
            # modules.dep lists the dependencies so that the last is to be loaded first.
            for module in [*reversed(needs[path]), path]:
                if module not in ordered:
                    ordered.append(module)
        tree = self.initramfs.with_suffix(".tree")
        shutil.rmtree(tree, ignore_errors=True)
        for directory in ("bin", "modules", "proc", "sys", "dev", "host"):
            (tree / directory).mkdir(parents=True)
        shutil.copy(self.programs["busybox"], tree / "bin/busybox")
        if subprocess.run(["ldd", self.programs["busybox"]], capture_output=True).returncode == 0:
            raise Failure(f"{self.programs['busybox']} needs libraries: install busybox-static")
        shutil.copy(HERE / "init.sh", tree / "init")
        (tree / "init").chmod(0o755)
        for module in ordered:
            shutil.copy(modules / module, tree / "modules")
        (tree / "modules/order").write_text("".join(pathlib.Path(m).name + "\n" for m in ordered))
        names = b"\0".join(str(p.relative_to(tree)).encode() for p in sorted(tree.rglob("*")))
        archive = run(self.programs["cpio"], "--null", "-o", "-H", "newc", "--quiet", cwd=tree, stdin=names)
        self.initramfs.write_bytes(archive)

    def run(self, steps, seconds=GUEST_SECONDS):
        """Boots, runs the steps, and returns {name: (Output of the command, Output of the server)}; Failure
        after `seconds`.

        Whatever else was written to /run/results is in self.files, by name.
        """
        self.prepare()
        results = self.cache / f"results.{os.getpid()}"
        shutil.rmtree(results, ignore_errors=True)
        results.mkdir()
        try:
            (results / "steps.sh").write_text("".join(map(self.shell, steps)))
            self.boot(results, seconds)
            self.files = {path.name: path.read_text(errors="replace") for path in results.iterdir()
                          if path.is_file()}
            return {step.name: (self.output(results / step.name),
                                self.output(results / f"{step.name}.server"))
                    for step in steps}
        finally:
            shutil.rmtree(results, ignore_errors=True)

    @staticmethod
    def shell(step):
        # Only the commands themselves get it: a library to preload is nothing for the shells around them.
        environment = ["env", *(f"{key}={value}" for key, value in step.env.items())] if step.env else []
        return shlex.join(["step", step.name, str(step.seconds), step.ready or "-", step.stop,
                           shlex.join(environment + step.command),
                           shlex.join(environment + step.server) if step.server else ""]) + "\n"

    @staticmethod
    def output(path):
        def text(kind):
            file = path.with_name(f"{path.name}.{kind}")
            return file.read_text(errors="replace") if file.exists() else ""
        code = text("code").strip()
        return Output(int(code) if code else None, text("out"), text("err"), float(text("seconds") or 0))

    def boot(self, results, seconds):
        console = results / "console"
        share = "security_model=none,multidevs=remap"
        command = [self.programs["qemu-system-x86_64"], "-accel", "tcg,thread=multi", "-machine", "q35",
                   "-cpu", "max",
                   "-smp", "2", "-m", "768", "-nodefaults", "-no-user-config", "-display", "none",
                   "-no-reboot",
                   *self.suite.devices,
                   "-serial", f"file:{console}", "-kernel", str(self.kernel), "-initrd", str(self.initramfs),
                   "-virtfs", f"local,path=/,mount_tag=host,readonly=on,{share}",
                   "-virtfs", f"local,path={results},mount_tag=results,{share}",
                   "-append", f"console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on "
                              f"guest_script={self.suite.script}"]
        begin = time.monotonic()
        qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT,
                                preexec_fn=die_with_parent)
        try:
            said, _ = qemu.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            said = b""
        finally:
            qemu.kill()
            qemu.wait()
            self.seconds = time.monotonic() - begin
        last = console.read_text(errors="replace")[-4000:] if console.exists() else ""
        trouble = [line for line in last.splitlines() if line.startswith("guest: ")]
        if trouble:
            raise Failure("\n".join(trouble))
        if not (results / "done").exists():
            begun = sorted(results.glob("*.begun"), key=lambda path: path.stat().st_mtime_ns)
            where = f"in step {begun[-1].stem}, the {len(begun)}th" if begun else "before the first step"
            raise Failure(f"the guest did not come to its end within {self.seconds:.0f} s: it was {where}\n"
                          f"{said.decode(errors='replace')}\nits console:\n{last}")
