# SPDX-License-Identifier: BSD-2-Clause
"""Installs into an empty folder and looks at the result as its users would: a preloaded program must find no
symbol that it did not ask for and no library that it did not load, a compiler must find the header, a reader
the configuration."""
import argparse
import fnmatch
import os
import re
import subprocess
import sys
import tempfile
import unittest

parser = argparse.ArgumentParser()
for option in ("cmake", "build", "source", "prefix", "libdir", "bindir", "includedir", "mandir", "sanitize",
               "cxx"):
    parser.add_argument("--" + option)
GIVEN, rest = parser.parse_known_args()
# Programs of tools/ that only the build uses.
NOT_INSTALLED = {"vma_params"}
READ_BY_THE_LIBRARY = "/etc/libvma.conf"
# Libraries to preload.
PRELOADED = {"vma_trace"}
# What every process has anyway. libgcc_s is only needed to unwind, and it is part of any Debian system.
NEEDED = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def files_below(folder):
    return [os.path.join(place, file) for place, _, files in os.walk(folder) for file in files]


def version_script(path):
    """Names and patterns that a linker version script makes global."""
    with open(path, encoding="ascii") as file:
        text = re.sub(r"/\*.*?\*/|#[^\n]*", "", file.read(), flags=re.S)
    names = set()
    for section in re.findall(r"\bglobal\s*:(.*?)(?=\blocal\s*:|\})", text, flags=re.S):
        names |= {name.strip().strip('"') for name in section.split(";") if name.strip()}
    return names


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        run(GIVEN.cmake, "--install", GIVEN.build, env={**os.environ, "DESTDIR": cls.folder.name})
        cls.library = cls.path(GIVEN.libdir, "libvma.so")

    @classmethod
    def path(cls, *parts):
        return cls.folder.name + os.path.join(*parts)

    def exported(self):
        lines = run("nm", "--dynamic", "--defined-only", "--extern-only", self.library).splitlines()
        return {line.split()[2].split("@")[0] for line in lines} - {"_init", "_fini"}

    def test_library(self):
        self.assertTrue(os.path.isfile(self.library), self.library)

    def test_header_compiles(self):
        self.assertTrue(os.path.isfile(self.path(GIVEN.includedir, "mellanox", "vma_extra.h")))
        for language in ("c", "c++"):
            with self.subTest(language):
                run(GIVEN.cxx, "-x", language, "-fsyntax-only", "-Wall", "-Werror",
                    "-I" + self.path(GIVEN.includedir), "-",
                    input="#include <mellanox/vma_extra.h>\nint main(void) { return 0; }\n")

    def test_programs(self):
        tools = os.listdir(os.path.join(GIVEN.source, "tools"))
        for name in {os.path.splitext(file)[0] for file in tools if file.startswith("vma_")} - NOT_INSTALLED:
            with self.subTest(name):
                where = self.path(GIVEN.libdir,
                                  f"lib{name}.so") if name in PRELOADED else self.path(GIVEN.bindir, name)
                self.assertTrue(os.access(where, os.R_OK | (0 if name in PRELOADED else os.X_OK)))

    def test_configuration_is_where_the_library_reads_it(self):
        self.assertEqual(read(self.path(READ_BY_THE_LIBRARY)),
                         read(os.path.join(GIVEN.source, "config", "libvma.conf")))

    def test_configuration_of_the_administrator_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            mine = folder + READ_BY_THE_LIBRARY
            os.makedirs(os.path.dirname(mine))
            with open(mine, "w", encoding="utf-8") as file:
                file.write("use os udp_receiver *:*\n")
            said = run(GIVEN.cmake, "--install", GIVEN.build, env={**os.environ, "DESTDIR": folder})
            self.assertEqual(read(mine), "use os udp_receiver *:*\n")
            self.assertIn(f"Kept: {mine}", said)
            example = next(path for path in files_below(folder) if path.endswith("libvma.conf")
                           and path != mine)
            self.assertEqual(read(example), read(os.path.join(GIVEN.source, "config", "libvma.conf")))

    @unittest.skipIf(GIVEN.sanitize, "a sanitizer must be loaded first")
    def test_preloading_by_name_works_after_a_real_installation(self):
        """What `sudo cmake --install` does, on copies of /etc and of the prefix that only this mount
        namespace sees."""
        with tempfile.TemporaryDirectory() as folder:
            script = f"""
                set -e
                mount --make-rprivate /
                mkdir -p {folder}/etc {folder}/prefix {GIVEN.prefix}
                cp -a /etc/. {folder}/etc
                rm -f {folder}/etc/libvma.conf
                mount --bind {folder}/etc /etc
                mount --bind {folder}/prefix {GIVEN.prefix}
                {GIVEN.cmake} --install {GIVEN.build}
                echo 'use nonsense' >> /etc/libvma.conf
                LD_PRELOAD=libvma.so VMA_TRACELEVEL=info python3 \
                    -c 'import socket; socket.socket(type=socket.SOCK_DGRAM)' 2>&1
            """
            said = run("unshare", "--mount", "sh", "-c", script)
            self.assertIn("LD_PRELOAD=libvma.so works now", said)
            self.assertRegex(said, r"/etc/libvma\.conf: line \d+, column 5: .*nonsense")


    def test_manual_pages(self):
        folder = os.path.join(GIVEN.source, "docs", "man")
        self.assertIn("libvma.conf.5", os.listdir(folder))
        for page in os.listdir(folder):
            with self.subTest(page), open(self.path(GIVEN.mandir, "man" + page[-1], page),
                                          encoding="utf-8") as installed:
                self.assertIn("\n.TH ", installed.read())

    def test_nothing_lies_outside_the_prefix_and_the_configuration(self):
        for folder, _, files in os.walk(self.folder.name):
            for file in files:
                path = os.path.join(folder, file)[len(self.folder.name):]
                self.assertTrue(path.startswith(GIVEN.prefix.rstrip("/") + "/")
                                or path == READ_BY_THE_LIBRARY, path)

    def test_exports_are_the_listed_ones(self):
        listed = version_script(os.path.join(GIVEN.source, "libvma", "preload", "exports.map"))
        self.assertGreater(len(listed), 50)
        exported = self.exported()
        unlisted = {name for name in exported
                    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in listed)}
        self.assertFalse(unlisted, "exported and not listed")
        self.assertFalse({name for name in listed if "*" not in name} - exported, "listed and not exported")

    def test_no_catch_all_among_the_listed(self):
        listed = version_script(os.path.join(GIVEN.source, "libvma", "preload", "exports.map"))
        self.assertFalse([name for name in listed if name.startswith("*")])

    @unittest.skipIf(GIVEN.sanitize, "a sanitizer brings libraries of its own")
    def test_needs_only_what_every_process_has(self):
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", "--wide", self.library)))
        self.assertLessEqual(needed, NEEDED)

    @unittest.skipIf(GIVEN.sanitize, "a sanitizer must be loaded first")
    def test_a_program_runs_with_the_installed_library(self):
        done = subprocess.run(["/bin/echo", "unchanged"], env={**os.environ, "LD_PRELOAD": self.library},
                              capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "unchanged\n", ""))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + rest)
