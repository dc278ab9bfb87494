"""Mutated JSON exports of Nsight Systems."""

from __future__ import annotations

import random

from tests.fuzz.changes import edge, of_bytes
from tests.readers.test_nsys_jsonlines import EXPORT

FORMAT, SUFFIX = "nsys-jsonlines", ".json"
LINES = EXPORT.read_bytes().splitlines(keepends=True)
DATA = b"".join([LINES[0], *LINES[1:-1:8], LINES[-1]])
FIRST = 16
"""Bytes by which a file is recognized."""


def whole_file(dice: random.Random) -> bytes:
    return DATA[:FIRST] + of_bytes(DATA[FIRST:], dice)


def truncated(dice: random.Random) -> bytes:
    return DATA[: dice.randrange(FIRST, len(DATA))]


def lines(dice: random.Random) -> bytes:
    """Move, repeat and drop lines."""
    first, *others = DATA.splitlines(keepends=True)
    return first + b"".join(dice.choices(others, k=dice.choice((3, 60, 900))))


def values(dice: random.Random) -> bytes:
    """Replace numbers by numbers on the edge and by other values."""
    parts = DATA.split(b'"')
    for _ in range(dice.choice((1, 1, 5))):
        at = dice.choice([n for n, part in enumerate(parts[12:], 12) if part.lstrip(b"-").isdigit()])
        parts[at] = dice.choice((b"%d" % edge(dice), b"-%d" % edge(dice), b"", b"1.5", b"NaN", b"\xff", b"x" * 70_000))
    return b'"'.join(parts)


def many(dice: random.Random) -> bytes:
    line = dice.choice((b"{}\n", b'{"data":[]}\n', b'{"NvtxEvent":{}}\n', b'{"CudaEvent":{"kernel":{}}}\n', b"\n"))
    return DATA + line * dice.choice((100, 50_000))


def made(case: int) -> tuple[str, bytes]:
    ways = (whole_file, truncated, lines, values, values, many)
    mutate = ways[case % len(ways)]
    return mutate.__name__, mutate(random.Random(case))


def unharmed() -> bytes:
    return DATA
