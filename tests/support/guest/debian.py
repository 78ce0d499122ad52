# SPDX-License-Identifier: BSD-2-Clause
"""Debian's packages, downloaded and unpacked below a directory: nothing is installed, and what apt knows of
the machine stays as it is.

Another release than the machine's own (its backports, those of the next one) comes from the same mirror. Its
lists are kept in the directory.
"""
import ctypes
import fnmatch
import pathlib
import re
import signal
import subprocess
import tarfile


class Failure(Exception):
    """What could not be done, and why."""


def die_with_parent():
    """Runs in the child: a killed test leaves no process behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def run(*command, cwd=None, stdin=None, timeout=120):
    done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, timeout=timeout,
                          preexec_fn=die_with_parent)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise Failure(f"{' '.join(map(str, command))}: {said}")
    return done.stdout


class Release:
    """`name`: "bookworm-backports" or another of Debian's; empty: what the machine installs from."""

    def __init__(self, directory, name=""):
        self.directory, self.name, self.options = pathlib.Path(directory), name, ()
        if name:
            self.use(self.directory / f"apt.{name}")

    def use(self, place):
        sources, partial, lists = place / "sources.list", place / "sources.part", place / "lists"
        self.options = ("-o", f"Dir::Etc::sourcelist={sources}", "-o", "Dir::Etc::sourceparts=-",
                        "-o", f"Dir::State::lists={lists}")
        if sources.exists():
            return
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        known = run("apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)").decode().split("\n")
        mirror = next((words[0] for words in map(str.split, known)
                       if words[1:] == ["main"] and words[0].rstrip("/").endswith("/debian")), None)
        if mirror is None:
            raise Failure("apt knows no mirror of Debian: apt-get update, or not Debian")
        partial.write_text(f"deb {mirror} {self.name} main\n")
        run("apt-get", "update", *self.options, "-o", f"Dir::Etc::sourcelist={partial}", timeout=300)
        partial.rename(sources)

    def depends(self, package):
        """Names of the packages that it needs, of alternatives the first."""
        said = run("apt-cache", "show", "--no-all-versions", package, *self.options).decode()
        found = re.search(r"^Depends: (.*)$", said, re.MULTILINE)
        return [part.split()[0].split(":")[0] for part in found[1].split(",")] if found else []

    def unpack(self, package, tree, patterns=("*",)):
        """The files whose paths, which begin without a slash, match one of the patterns."""
        with_release = f"{package}/{self.name}" if self.name else package
        try:
            run("apt-get", "download", with_release, *self.options, cwd=self.directory, timeout=600)
        except Failure as failure:
            raise Failure(f"the package {package} cannot be downloaded: {failure}") from failure
        archive = next(self.directory.glob(f"{package}_*.deb"))
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE,
                              preexec_fn=die_with_parent) as unpacker:
            with tarfile.open(fileobj=unpacker.stdout, mode="r|") as files:
                for member in files:
                    path = member.name.removeprefix("./")
                    if any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns):
                        files.extract(member, tree)
        if unpacker.returncode != 0:
            raise Failure(f"dpkg-deb cannot unpack {archive.name}")
        archive.unlink()
