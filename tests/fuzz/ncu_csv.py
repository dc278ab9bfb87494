"""Mutated CSV of Nsight Compute, read in blocks of several sizes."""

from __future__ import annotations

import random

from tests.readers.test_ncu_csv_fuzz import FILES, mutated
from tracekit.readers.ncu_csv import frame

FORMAT, SUFFIX = "ncu-csv", ".csv"
BLOCKS = (100, 10_000, frame.BLOCK_BYTES)
LARGE = 200_000
"""Bytes that are put into some files."""
REPEATED = (
    b'"',
    b'"\n',
    b'""\n',
    b'","',
    b"\n",
    b"\r\n",
    b"\r",
    b" \n",
    b",",
    b"\0",
    b"\0\n",
    b"\xff",
    b"x\n",
    b'"0","',
)
REPEATED += (
    b"==PROF== \n",
    b"==ERROR== x\n",
    b'"1","2"\n',
    b'"0","1","p\n',
    b'" ',
    b'"x',
    b"\x1e",
    b'"a\nb"',
    b"1;",
    b"(",
)


def unharmed() -> bytes:
    return FILES[0]


def made(case: int) -> tuple[str, bytes]:
    dice = random.Random(case)
    grown = case % 3 == 0
    frame.BLOCK_BYTES = dice.choice(BLOCKS[grown:])
    data = mutated(dice)
    return f"blocks of {frame.BLOCK_BYTES} bytes", inflated(data, dice) if grown else data


def inflated(data: bytes, dice: random.Random) -> bytes:
    """Repeat something until a file is large, or write it as another system would."""
    way = dice.randrange(8)
    lines = data.split(b"\n")
    if way < 3:
        part = dice.choice(REPEATED) * dice.choice((1, 1, 3))
        at = dice.randrange(len(data) + 1)
        return data[:at] + part * (LARGE // len(part)) + data[at:]
    if way == 3:
        line = dice.randrange(len(lines))
        lines[line:line] = [lines[line]] * (LARGE // (len(lines[line]) + 1))
        return b"\n".join(lines)
    if way == 4:
        line = dice.randrange(len(lines))
        cell = dice.choice((b',"a"', b',""', b",", b',"1"', b',"%d"'))
        lines[line] += b"".join(cell.replace(b"%d", b"%d" % n) for n in range(LARGE // len(cell)))
        return b"\n".join(lines)
    if way == 5:
        return data * (LARGE // (len(data) + 1) + 1)
    if way == 6:
        return data.decode("utf-8", "replace").encode(dice.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig")))
    return data.replace(b"\n", dice.choice((b"\r\n", b"\r", b"\n\n", b"\0\n", b"\n\r", b"\x0b\n", b"")))
