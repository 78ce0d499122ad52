# SPDX-License-Identifier: BSD-2-Clause
"""From readings to the table. A reading is a dictionary of numbers; a round is a dictionary of readings by
their names.

Ratios are taken inside a round: what moves the machine moves all of its readings.
"""
import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Row:
    """One line: which readings it compares, and what is aimed at. A suite (suite_udp, suite_tcp) is a list of
    them."""
    key: str
    title: str
    kernel: str                 # names of readings
    vma: str
    field: str
    less: bool = False          # less is better
    raw: str = None             # reading of AF_XDP with nothing on top
    target: float = None        # least number of times better than the kernel
    raw_target: float = None    # beside raw: at most if less is better, at least if more is
    limit: float = None         # libvma's own value at most; such a row has no ratio to the kernel
    section: str = None         # begins a section of this title


def evaluate(rows, rounds):
    """Readings of all rounds -> one dictionary for each row of the table."""
    result = []
    for row in rows:
        base = [r[row.kernel][row.field] for r in rounds]
        with_vma = [r[row.vma][row.field] for r in rounds]
        limits = [r[row.raw][row.field] for r in rounds] if row.raw else None
        result.append({
            "key": row.key, "title": row.title, "section": row.section, "less": row.less,
            "kernel": spread(base), "libvma": spread(with_vma),
            "ratio": None if row.limit is not None else
                     spread([k / v if row.less else v / k for k, v in zip(base, with_vma)]),
            "target": row.target, "limit": row.limit,
            "raw": spread(limits) if limits else None,
            "to_raw": spread([v / x for v, x in zip(with_vma, limits)]) if limits else None,
            "raw_target": row.raw_target,
            "offloaded": all(r[row.vma].get("offloaded", True) for r in rounds)})
    return result


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def number(value):
    """Three digits, more would pretend."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def cell(value):
    if value is None:
        return "-"
    if value["min"] == value["max"]:
        return number(value["median"])
    return f"{number(value['median'])} ({number(value['min'])}-{number(value['max'])})"


def aim(relation, wanted, reached):
    """"at least 2", marked if it was missed."""
    met = reached <= wanted if relation == "<=" else reached >= wanted
    return f"{relation} {number(wanted)}" + ("" if met else " missed")


def target(row):
    text = "-"
    if row["limit"] is not None:
        text = aim("<=", row["limit"], row["libvma"]["median"])
    elif row["target"] is not None:
        text = aim(">=", row["target"], row["ratio"]["median"])
    return text if row["offloaded"] else "not offloaded" if text == "-" else text + ", not offloaded"


def raw_target(row):
    if row["raw_target"] is None or row["to_raw"] is None:
        return "-"
    return aim("<=" if row["less"] else ">=", row["raw_target"], row["to_raw"]["median"])


def table(evaluated):
    lines = [["", "kernel", "libvma", "times better", "target", "raw limit", "libvma / raw", "target"]]
    for row in evaluated:
        if row["section"]:
            lines.append([row["section"]])
        lines.append(["  " + row["title"], cell(row["kernel"]), cell(row["libvma"]), cell(row["ratio"]),
                      target(row),
                      cell(row["raw"]), cell(row["to_raw"]), raw_target(row)])
    widths = [max(len(line[i]) for line in lines if len(line) > 1) for i in range(8)]
    text = []
    for line in lines:
        if len(line) == 1:
            text.append(line[0])
        else:
            cells = ("  " + c.rjust(w) for c, w in zip(line[1:], widths[1:]))
            text.append((line[0].ljust(widths[0]) + "".join(cells)).rstrip())
    return "\n".join(text)
