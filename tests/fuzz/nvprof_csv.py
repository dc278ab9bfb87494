"""Mutated CSV output of nvprof."""

from __future__ import annotations

import random

from tests.fuzz.changes import edge, of_bytes
from tests.readers.test_nvprof_csv import SUMMARY, TRACES

FORMAT, SUFFIX = "nvprof-csv", ".csv"
DATA, OTHER = TRACES.read_bytes().partition(b"result:\n")[2], SUMMARY.read_bytes().partition(b"result:\n")[2]
FIRST = 32
"""Bytes by which a file is recognized."""


def whole_file(dice: random.Random) -> bytes:
    return DATA[:FIRST] + of_bytes(DATA[FIRST:], dice)


def truncated(dice: random.Random) -> bytes:
    return DATA[: dice.randrange(len(DATA) // 2, len(DATA))]


def cells(dice: random.Random) -> bytes:
    """Replace cells by numbers on the edge, other units, quotes and long texts."""
    first, *lines = dice.choice((DATA, OTHER)).split(b"\n")
    for _ in range(dice.choice((1, 2, 6))):
        at = dice.randrange(len(lines))
        parts = lines[at].split(b",")
        values = (b"%d" % edge(dice), b"-1", b"1e999", b"NaN", b"1 h", b'"', b'""', b"", b"x" * 5000, b"\xff")
        parts[dice.randrange(len(parts))] = dice.choice(values)
        lines[at] = b",".join(parts)
    return b"\n".join([first, *lines])


def many(dice: random.Random) -> bytes:
    line = dice.choice((b'"Start","Duration","Name"\n', b"\n", b",,,\n", b'1,1,"f",1\n', b"==1== API calls:\n"))
    return DATA + line * dice.choice((50, 2000))


def made(case: int) -> tuple[str, bytes]:
    ways = (whole_file, truncated, cells, cells, many)
    mutate = ways[case % len(ways)]
    return mutate.__name__, mutate(random.Random(case))


def unharmed() -> bytes:
    return DATA
