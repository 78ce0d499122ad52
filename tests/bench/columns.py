# SPDX-License-Identifier: BSD-2-Clause
"""Tables whose rows are measurements and whose columns are circumstances, such as the sides that have the
library. The first column is what the others are compared with, inside a round."""
import json
import os

from table import cell, number, spread
from wire import add_build_option

WIDTH = 24


def add_options(parser, rounds):
    """What every command with such tables takes."""
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=int, default=1, help="length of one reading")
    parser.add_argument("--congestion", default="cubic", metavar="NAME",
                        help="the kernel's TCP congestion control (default cubic)")
    add_build_option(parser)
    parser.add_argument("--json", metavar="FILE", help="write all readings there")


def parse_options(parser):
    options = parser.parse_args()
    if min(options.rounds, options.seconds) < 1:
        parser.error("rounds and seconds must be at least 1")
    return options


def choose(parser, options, rows):
    """The rows that --only asks for."""
    chosen = {name: row for name, row in rows.items() if (options.only or "").lower() in name.lower()}
    if not chosen:
        parser.error(f"no row's name contains {options.only}")
    return chosen


def write_readings(options, rounds):
    """What --json asks for."""
    if options.json:
        with open(options.json, "w", encoding="ascii") as file:
            json.dump(rounds, file, indent=1)


def heading(options, pinned):
    """What was measured and how, above a table."""
    placed = "client and server pinned to a processor each" if pinned else "programs not pinned"
    return (f"Linux {os.uname().release}, {os.cpu_count()} CPUs, veth; {placed}; kernel TCP with "
            f"{options.congestion}; medians of {options.rounds} rounds of {options.seconds} s "
            "(smallest-largest)\n")


def steps_of(rows, columns):
    """Steps for demo.measure(). `rows`: name -> (function, field of its reading, ...); `columns`: name ->
    arguments of the function. A function that several rows share measures once for all."""
    return {f"{source_of(rows, name)}: {column}": lambda call=row[0], arguments=arguments: call(**arguments)
            for name, row in rows.items() for column, arguments in columns.items()}


def source_of(rows, name):
    """The first row with the same function."""
    return next(other for other, row in rows.items() if row[0] is rows[name][0])


def readings(rows, rounds, name, column):
    """The row's field, in each round."""
    return [r[f"{source_of(rows, name)}: {column}"][rows[name][1]] for r in rounds]


def ratios(rows, rounds, name, column, base):
    """Of a column's readings to those of `base`, in each round."""
    return [own / other for own, other in zip(readings(rows, rounds, name, column),
                                              readings(rows, rounds, name, base))]


def table(rows, rounds, columns):
    """Lines of text: the first column's median with the smallest and the largest, and of each other one the
    median and the ratios."""
    base, *others = columns
    width = max(map(len, rows))
    lines = [" " * width + "".join(column.rjust(WIDTH) for column in columns)]
    for name in rows:
        line = name.ljust(width) + cell(spread(readings(rows, rounds, name, base))).rjust(WIDTH)
        for column in others:
            text = number(spread(readings(rows, rounds, name, column))["median"])
            if all(readings(rows, rounds, name, base)):    # beside nothing there is no ratio
                text += ": " + cell(spread(ratios(rows, rounds, name, column, base)))
            line += text.rjust(WIDTH)
        lines.append(line)
    return lines
