"""Mutated profiles of XLA."""

from __future__ import annotations

import gzip
import random

from tests.fuzz.changes import edge, of_bytes, of_message, varint
from tests.readers.test_xplane import DATA, TPU

FORMAT, SUFFIX = "xplane", ".xplane.pb"
FIRST = 24
"""Bytes by which a file is recognized."""


VIEWER_FIRST = 300
"""Bytes by which the trace for the trace viewer is recognized."""


def whole_file(file: bytes, dice: random.Random) -> bytes:
    return of_bytes(file, dice)


def body(file: bytes, dice: random.Random) -> bytes:
    return file[:FIRST] + of_bytes(file[FIRST:], dice)


def truncated(file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def messages(file: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.choice((1, 1, 4))):
        file = of_message(file, dice)
    return file


def lies(file: bytes, dice: random.Random) -> bytes:
    """Put a size or a number on the edge somewhere, of whatever length."""
    at = dice.randrange(FIRST, len(file))
    return file[:at] + varint(edge(dice), padded=dice.choice((0, 0, 3, 9))) + file[at + dice.choice((0, 1, 2)) :]


def delimited(key: int, value: bytes) -> bytes:
    return varint(key << 3 | 2) + varint(len(value)) + value


def many(file: bytes, dice: random.Random) -> bytes:
    """Add many empty parts: planes, lines, names, events, values of an event."""
    number = dice.choice((70, 5000, 200_000))
    host = delimited(2, b"/host:x")
    parts = {
        "planes": b"\x0a\x00" * number,
        "lines": delimited(1, host + b"\x1a\x00" * number),
        "names": delimited(1, host + b"\x22\x00\x2a\x00" * number),
        "events": delimited(1, host + delimited(3, b"\x22\x00" * number)),
        "values": delimited(1, host + delimited(3, delimited(4, b"\x22\x00" * number))),
        "hosts": delimited(1, host) * min(number, 4000),
    }
    return file + parts[dice.choice(list(parts))]


def viewer(_file: bytes, dice: random.Random) -> bytes:
    """Mutate the trace beside the profile."""
    trace = gzip.decompress(TPU.with_name("tpu.trace.json.gz").read_bytes())
    return trace[:VIEWER_FIRST] + of_bytes(trace[VIEWER_FIRST:], dice)


def made(case: int) -> tuple[str, bytes]:
    ways = (whole_file, body, truncated, messages, messages, lies, many, viewer)
    mutate = ways[case % len(ways)]
    data = TPU.read_bytes() if case % 2 else DATA
    return mutate.__name__, mutate(data, random.Random(case))


def unharmed() -> bytes:
    return DATA
