# SPDX-License-Identifier: BSD-2-Clause
"""A kernel of Debian's, booted in QEMU, with drivers and devices that the host does not have.

The kernel is downloaded and unpacked below the build directory, nothing is installed. The guest sees
the host's root file system read-only over 9p, so every program of the host and of the build directory runs
there under the same path; what it writes goes to a directory of results, over 9p as well.

A suite (Suite) says which modules and which devices its guest has, and has a script that sets them up. One
boot runs a list of steps, one after the other. KVM is not used: everything is emulated, so only functions can
be tested there, never speed.
"""
import dataclasses
import fcntl
import lzma
import os
import pathlib
import shlex
import shutil
import subprocess
import time

from debian import Failure, Release, die_with_parent, run

HERE = pathlib.Path(__file__).resolve().parent
KERNEL_PACKAGE = "linux-image-amd64"         # depends on the current kernel's package
# Of a kernel's hundreds of megabytes: boot/, and of lib/modules/VERSION/ what the suites' devices need.
KERNEL_FILES = ("vmlinuz", "modules.*", "kernel/fs/9p/*", "kernel/fs/configfs/*", "kernel/fs/fscache/*",
                "kernel/fs/netfs/*", "kernel/net/9p/*", "kernel/net/core/failover.*", "kernel/net/ipv4/*",
                "kernel/net/ipv6/*", "kernel/net/tls/*", "kernel/lib/*", "kernel/crypto/*",
                "kernel/arch/x86/crypto/*", "kernel/drivers/virtio/*", "kernel/drivers/infiniband/core/*",
                "kernel/drivers/infiniband/sw/*", "kernel/drivers/i2c/*", "kernel/drivers/dca/*",
                "kernel/drivers/net/veth.*", "kernel/drivers/net/virtio_net.*",
                "kernel/drivers/net/net_failover.*", "kernel/drivers/net/mii.*",
                "kernel/drivers/net/bonding/*", "kernel/drivers/net/vmxnet3/*",
                "kernel/drivers/net/ethernet/intel/e1000e/*", "kernel/drivers/net/ethernet/intel/igb/*",
                "kernel/drivers/net/ethernet/intel/libeth/*", "kernel/drivers/net/ethernet/realtek/8139*")
# The emulator of another release, and what it reads.
QEMU_PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")
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
    further words for QEMU. `programs` and `files` must be there, each with the Debian package that has it.
    `kernel` and `emulator` are of that release of Debian, by default of the machine's. `taps`, which devices
    may name, are the ports of a bridge in a network namespace of the emulator's own; each with its name, and
    whether it has several queues."""
    script: pathlib.Path
    modules: tuple
    devices: tuple = ()
    programs: tuple = ()
    files: tuple = ()
    kernel: str = ""
    emulator: str = ""
    taps: tuple = ()


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


def find_programs(needed, files):
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = {program: shutil.which(program, path=path) for program, _ in needed}
    missing = [f"{program} (Debian package {package})" for program, package in needed if not found[program]]
    missing += [f"{file} (Debian package {package})" for file, package in files
                if not pathlib.Path(file).exists()]
    if missing:
        raise Failure("missing: " + ", ".join(missing) + "; tools/setup installs them")
    return found


class Guest:
    def __init__(self, build_directory, suite):
        """Failure names what is missing."""
        self.suite = suite
        self.programs = find_programs((*NEEDED, *suite.programs), suite.files)
        self.cache = pathlib.Path(build_directory).resolve() / "guest"
        self.cache.mkdir(parents=True, exist_ok=True)

    # Kernel and emulator are unpacked once for a build directory, while other suites wait; the initramfs is
    # made once for a suite and a version of its files and these.
    def prepare(self):
        with open(self.cache / "lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tree = self.unpacked("kernel", self.suite.kernel, self.unpack_kernel)
            self.kernel = next(tree.rglob("vmlinuz*"))
            self.modules = next(tree.rglob("modules.dep")).parent
            if self.suite.emulator:
                self.emulator = self.unpacked("qemu", self.suite.emulator, self.unpack_emulator)
        self.initramfs = self.cache / f"{self.suite.script.parent.name}{self.suite.kernel}.cpio"
        sources = (pathlib.Path(__file__), HERE / "init.sh", self.suite.script, self.kernel)
        if not self.initramfs.exists() or self.initramfs.stat().st_mtime < max(f.stat().st_mtime
                                                                               for f in sources):
            self.make_initramfs()

    def unpacked(self, what, release, unpack):
        """The directory with it, which `unpack` fills when there is none."""
        tree = self.cache / f"{what}{release}"
        if not tree.exists():
            partial = tree.with_suffix(".part")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            unpack(Release(self.cache, release), partial)
            partial.rename(tree)
        return tree

    def unpack_kernel(self, release, tree):
        image = next((name for name in release.depends(KERNEL_PACKAGE) if name.startswith("linux-image-")),
                     None)
        if image is None:
            raise Failure(f"apt knows no package {KERNEL_PACKAGE}: apt-get update, or not Debian")
        # Newer releases have a package for each part of a kernel.
        parts = [name for name in release.depends(image)
                 if name.startswith(("linux-modules-", "linux-binary-", "linux-base-"))]
        patterns = ["boot/vmlinuz-*"]
        patterns += [f"{top}lib/modules/*/{file}" for top in ("", "usr/") for file in KERNEL_FILES]
        for package in parts or [image]:
            release.unpack(package, tree, patterns)
        if not (tree / "lib").exists():
            (tree / "lib").symlink_to("usr/lib")
        version = next(tree.glob("lib/modules/*")).name
        run(self.programs["depmod"], "-b", tree, version)

    @staticmethod
    def unpack_emulator(release, tree):
        for package in QEMU_PACKAGES:
            release.unpack(package, tree, ("usr/bin/qemu-system-x86_64", "usr/share/qemu/*",
                                           "usr/share/seabios/*"))

    def make_initramfs(self):
        modules = self.modules
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
                raise Failure(f"{self.kernel.name} has no module {name}")
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
        # busybox loads no module that is compressed.
        plain = [pathlib.Path(module).name.removesuffix(".xz") for module in ordered]
        for module, name in zip(ordered, plain):
            content = (modules / module).read_bytes()
            (tree / "modules" / name).write_bytes(lzma.decompress(content) if module.endswith(".xz")
                                                  else content)
        (tree / "modules/order").write_text("".join(name + "\n" for name in plain))
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

    def bridge(self):
        """Commands for a shell: makes the taps, and becomes the command of its arguments."""
        lines = ["ip link add bridge type bridge mcast_snooping 0", "ip link set bridge up"]
        for tap, queues in self.suite.taps:
            lines += [f"ip tuntap add {tap} mode tap vnet_hdr{' multi_queue' if queues else ''}",
                      f"ip link set {tap} master bridge up"]
        return "\n".join([*lines, 'exec "$@"'])

    def boot(self, results, seconds):
        console = results / "console"
        share = "security_model=none,multidevs=remap"
        emulator = [self.programs["qemu-system-x86_64"]]
        if self.suite.emulator:
            usr = self.emulator / "usr"
            emulator = [usr / "bin/qemu-system-x86_64", "-L", usr / "share/qemu", "-L", usr / "share/seabios"]
        command = [*emulator, "-accel", "tcg,thread=multi", "-machine", "q35",
                   # Wide vectors are emulated word by word, and programs use them where they can.
                   "-cpu", "qemu64",
                   "-smp", "2", "-m", "768", "-nodefaults", "-no-user-config", "-display", "none",
                   "-no-reboot",
                   *self.suite.devices,
                   "-serial", f"file:{console}", "-kernel", str(self.kernel), "-initrd", str(self.initramfs),
                   "-virtfs", f"local,path=/,mount_tag=host,readonly=on,{share}",
                   "-virtfs", f"local,path={results},mount_tag=results,{share}",
                   "-append", f"console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on "
                              f"guest_script={self.suite.script}"]
        if self.suite.taps:
            command = ["unshare", "-n", "sh", "-ec", self.bridge(), "sh", *command]
        begin = time.monotonic()
        qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, preexec_fn=die_with_parent)
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
