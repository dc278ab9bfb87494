"""Mutated Perfetto traces: one of all parts, as other programs write them, and one that tracekit wrote."""

from __future__ import annotations

import functools
import gzip
import random
import tempfile
import zlib
from pathlib import Path

import tracekit as tk
from tests.conftest import FIXTURES
from tests.fuzz.changes import edge, of_bytes, of_message, varint

FORMAT, SUFFIX = "perfetto", ".pftrace"
FOREIGN = (FIXTURES / "perfetto" / "events.pftrace").read_bytes()


@functools.cache
def ours() -> bytes:
    """A trace that tracekit wrote, without compressed packets."""
    with tempfile.TemporaryDirectory() as folder, tk.load(FIXTURES / "nvtx_features.sqlite") as trace:
        return gzip.decompress(trace.export(Path(folder) / "x.pftrace.gz").read_bytes())


def messages(file: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.choice((1, 1, 4))):
        file = of_message(file, dice)
    return file


def truncated(file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def lies(file: bytes, dice: random.Random) -> bytes:
    """Put a size or a number on the edge somewhere, of whatever length."""
    at = dice.randrange(2, len(file))
    return file[:at] + varint(edge(dice), padded=dice.choice((0, 0, 3, 9))) + file[at + dice.choice((0, 1, 2)) :]


def packed(file: bytes, dice: random.Random) -> bytes:
    """Compress changed packets, and sometimes the whole file."""
    inner = zlib.compress(of_message(file, dice))
    field = varint(50 << 3 | 2) + varint(len(inner)) + inner
    whole = file + b"\x0a" + varint(len(field)) + field
    return gzip.compress(whole) if dice.random() < 0.5 else whole


def many(file: bytes, dice: random.Random) -> bytes:
    """Add many packets that are almost empty: events, sequences, snapshots, descriptors, strings."""
    number = dice.choice((70, 5000, 200_000))
    parts = {
        "events": b"\x0a\x04\x5a\x02\x48\x01" * number,
        "packets": b"\x0a\x00" * number,
        "snapshots": b"\x0a\x08\x32\x06\x0a\x04\x08\x06\x10\x01" * number,
        "tracks": b"".join(b"\x0a\x07\xe2\x03\x04\x08" + varint(n)[:1] + b"\x12\x00" for n in range(min(number, 5000))),
        "sequences": b"".join(
            b"\x0a" + bytes([1 + len(varint(n))]) + b"\x50" + varint(n) for n in range(min(number, 50_000))
        ),
        "strings": b"\x0a\x08\x62\x06\x12\x04\x08\x01\x12\x00" * number,
    }
    return file + parts[dice.choice(list(parts))]


WAYS = (of_bytes, messages, messages, truncated, lies, packed, many)


def made(case: int) -> tuple[str, bytes]:
    dice, mutate = random.Random(case), WAYS[case % len(WAYS)]
    return mutate.__name__, mutate(FOREIGN if dice.random() < 0.6 else ours(), dice)


def unharmed() -> bytes:
    return FOREIGN
