# SPDX-License-Identifier: BSD-2-Clause
"""Runs a program under callgrind and reads what it counted: instructions, in all or by the layer of the
library that executed them.

The format: valgrind's manual, "Callgrind Format Specification".
"""
import collections
import os
import re
import subprocess
import tempfile

from wire import Failure

# Folders of libvma/, as the table of layers in docs/architecture/README.md has them, and what else there is.
FOLDERS = ("preload", "api", "iomux", "sockets", "tcp", "ring", "verbs", "stats", "config", "net", "runtime",
           "os")
LAYERS = (*FOLDERS, "lwip", "libc", "other")
VALGRIND = "{valgrind}"
# A line of cost: where (a line number, relative to the last one, or the same), and how much.
COST = re.compile(r"(?:[+-]?\d+|\*) (\d+)$")
NAMED = re.compile(r"(ob|fl|fi|fe|fn)=(?:\((\d+)\))?(?: ?(.*))?$")


def run(command, functions, environment=None, timeout=300):
    """(what the program printed, callgrind's file) of a run in which `functions`, and what they call, are
    counted. `command` has VALGRIND where valgrind and its options go."""
    with tempfile.NamedTemporaryFile(prefix="callgrind.") as out:
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--collect-atstart=no",
                    f"--callgrind-out-file={out.name}"]
        valgrind += [f"--toggle-collect={name}" for name in functions]
        at = command.index(VALGRIND)
        done = subprocess.run([*command[:at], *valgrind, *command[at + 1:]], capture_output=True, text=True,
                              check=False, timeout=timeout, env=environment)
        if done.returncode != 0:
            raise Failure(f"{' '.join(command[at + 1:])}: {(done.stderr or done.stdout).strip()}")
        with open(out.name, encoding="utf-8", errors="replace") as file:
            return done.stdout, file.read()


def per_call(command, functions, count, environment=None):
    """Instructions for each call: a counter by layer, and the same in all under "all"."""
    return added(command, functions, count, environment,
                 lambda text: collections.Counter(all=total(text)) + by_layer(text))


def all_per_call(command, functions, count, environment=None):
    """Function -> the same in all, of several functions that one program calls: the runs are shared, so
    layers are not told apart."""
    return added(command, functions, count, environment,
                 lambda text: collections.Counter({name: inclusive(text, name) for name in functions}))


def added(command, functions, count, environment, counted):
    """What one call more adds to the counter that `counted` makes of callgrind's file. `command(count)` runs
    at least `count` calls, and prints their number as its last word. What the first call of a function costs
    (the dynamic linker) is left out: two runs of different length are subtracted."""
    runs = {}
    for number in (count, 2 * count):
        printed, text = run(command(number), functions, environment)
        runs[int(printed.split()[-1])] = counted(text)
    (few, least), (many, most) = sorted(runs.items())
    return collections.Counter({key: (most[key] - least[key]) / (many - few) for key in most})


def inclusive(text, function):
    """Instructions of `function` and of what it calls. The first part of a function's name in the file is
    its number, and the whole name is written once."""
    number, inside, found = None, False, 0
    for line in text.splitlines():
        named = NAMED.match(line)
        if named and named[1] == "fn":
            if named[3] == function:
                number = named[2]
            inside = named[3] == function or (number is not None and named[2] == number)
        elif line.startswith("cfn="):
            called = re.match(r"cfn=\((\d+)\) (.*)$", line)
            if called and called[2] == function:
                number = called[1]
        elif inside and COST.match(line):
            found += int(COST.match(line)[1])
    if number is None:
        raise Failure(f"callgrind did not see {function}")
    return found


def total(text):
    """Instructions of a file of callgrind."""
    events = re.search(r"^(?:summary|totals): (\d+)", text, re.M)
    if events is None:
        raise Failure("callgrind counted nothing")
    return int(events.group(1))


def layer_of(path):
    """The layer of a source file; None if it is not the library's."""
    if "/lwip/" in path or "/lwip-" in path:
        return "lwip"
    found = re.match(r".*/libvma/(\w+)/", path)
    return found[1] if found and found[1] in FOLDERS else None


def by_layer(text):
    """Layer -> instructions. What the compiler puts into a function from a header of another layer counts
    for that layer; from a header of nobody's (the C++ library) it counts for the function's own. The calling
    program's own instructions are left out."""
    names = collections.defaultdict(dict)    # kind -> number -> name: a name is written once
    result = collections.Counter()
    current = {"ob": "", "fl": "", "fn": "", "fi": ""}
    inclusive = False                        # the next line is what a call cost, which is counted where it is
    for line in text.splitlines():
        named = NAMED.match(line)
        if named:
            what, number, name = named.groups()
            kind = "fl" if what in ("fl", "fi", "fe") else what
            if name:
                names[kind][number] = name
            value = name or names[kind].get(number, "")
            if what == "fl":
                current["fl"] = current["fi"] = value
            else:
                current["fi" if what in ("fi", "fe") else what] = value
        elif line.startswith("calls="):
            inclusive = True
        elif re.match(r"c(ob|fi|fl)=", line):
            number, name = re.match(r"c\w+=\((\d+)\)(?: (.*))?$", line).groups()
            if name:
                names["ob" if line[1:3] == "ob" else "fl"][number] = name
        elif line.startswith("cfn="):
            number, name = re.match(r"cfn=\((\d+)\)(?: (.*))?$", line).groups()
            if name:
                names["fn"][number] = name
        elif COST.match(line):
            if not inclusive:
                result[place(current)] += int(COST.match(line).group(1))
            inclusive = False
    result.pop(None, None)
    return result


def place(current):
    """The layer that executes: None for the calling program."""
    if current["fn"].startswith("measured_"):
        return None
    library = os.path.basename(current["ob"])
    if re.match(r"(libc|libm|ld-linux[\w-]*|libpthread|libstdc\+\+|libgcc_s)[.-]", library):
        return "libc"
    return layer_of(current["fi"]) or layer_of(current["fl"]) or "other"
