"""Mutated memory snapshots of PyTorch."""

from __future__ import annotations

import pickle
import random
import struct
from pathlib import Path

from tests.fuzz.changes import edge, of_bytes

FORMAT, SUFFIX = "memory-snapshot", ".pickle"
DATA = (Path(__file__).parents[2] / "fixtures" / "memory_snapshot" / "ring.pickle").read_bytes()
FIRST = 40
"""Bytes by which a file is recognized."""
OPCODES = b"(.012FNGIJKLMTUVXabcdehijlopqrstu}])BCPQRS" + bytes(range(0x80, 0x99))


def whole_file(file: bytes, dice: random.Random) -> bytes:
    return of_bytes(file, dice)


def body(file: bytes, dice: random.Random) -> bytes:
    return file[:FIRST] + of_bytes(file[FIRST:], dice)


def truncated(file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def opcodes(file: bytes, dice: random.Random) -> bytes:
    """Insert opcodes, or put them in the place of bytes."""
    data = bytearray(file)
    for _ in range(dice.choice((1, 1, 4, 50))):
        at = dice.randrange(FIRST, len(data))
        data[at : at + dice.choice((0, 1))] = bytes([dice.choice(OPCODES)])
    return bytes(data)


def lies(file: bytes, dice: random.Random) -> bytes:
    """Put a size or an index on the edge behind an opcode that has one."""
    at = dice.randrange(FIRST, len(file))
    code = dice.choice(b"XBTJjr\x8b\x8d\x8e\x95\x96")
    size = struct.pack("<Q", edge(dice) & ((1 << 64) - 1))
    return file[:at] + bytes([code]) + size[: 8 if code > 0x8C else 4] + file[at + dice.choice((0, 1, 5)) :]


def values(file: bytes, dice: random.Random) -> bytes:
    """Put other values in the place of those of members."""
    snapshot = pickle.loads(file)
    others = (None, -1, 1 << 62, 1 << 63, -(1 << 63), 1 << 90, 0.5, "x", "", b"y", [], {}, (1,), [None], True)
    segment = dice.choice(snapshot["segments"])
    event = dice.choice(snapshot["device_traces"][0])
    frame = dice.choice(event["frames"] or [{}])
    note = dice.choice(snapshot["external_annotations"])
    for _ in range(dice.choice((1, 1, 3))):
        owner = dice.choice((snapshot, segment, dice.choice(segment["blocks"]), event, event, frame, note))
        if owner:
            owner[dice.choice([*owner, "new"])] = dice.choice(others)
    return pickle.dumps(snapshot, dice.choice((1, 2, 4, 5)))


def many(file: bytes, dice: random.Random) -> bytes:
    """Repeat the parts of a snapshot by reference."""
    snapshot = pickle.loads(file)
    number = dice.choice((70, 5000, 100_000))
    kind = dice.choice(("segments", "blocks", "traces", "events", "frames"))
    if kind == "segments":
        snapshot["segments"] *= number
    elif kind == "blocks":
        snapshot["segments"][0]["blocks"] *= number
    elif kind == "traces":
        snapshot["device_traces"] *= number
    elif kind == "events":
        snapshot["device_traces"][0] *= number
    else:
        snapshot["device_traces"][0][0]["frames"] = snapshot["device_traces"][0][0]["frames"] * number
    return pickle.dumps(snapshot, 4)


def made(case: int) -> tuple[str, bytes]:
    ways = (whole_file, body, truncated, opcodes, opcodes, lies, values, values, many)
    mutate = ways[case % len(ways)]
    return mutate.__name__, mutate(DATA, random.Random(case))


def unharmed() -> bytes:
    return DATA
