"""Mutated CSV files of rocprofv3."""

from __future__ import annotations

import random
import re
from pathlib import Path

from tests.fuzz.changes import edge, of_bytes

FORMAT, SUFFIX = "rocprof-csv", ".csv"
FOLDER = Path(__file__).parents[2] / "fixtures" / "rocm" / "csv"
FILES = [path.read_bytes() for path in sorted(FOLDER.iterdir())]
_CELL = re.compile(rb'(?<=,)(?:"[^"]*"|[^,"\n]+)')
CELLS = (b"", b'""', b'"', b"-1", b"1e9", b'"a,b"', b'"a\nb"', b"\xff", b"NULL", b"0x10", b'"' + b"x" * 70_000 + b'"')


def cells(file: bytes, dice: random.Random) -> bytes:
    """Change cells of lines, or names of columns."""
    header, _, lines = file.partition(b"\n")
    places = [*_CELL.finditer(lines)]
    for place in sorted(dice.sample(places, dice.choice((1, 3, len(places)))), key=re.Match.start, reverse=True):
        new = dice.choice((*CELLS, str(edge(dice)).encode()))
        lines = lines[: place.start()] + new + lines[place.end() :]
    return header + b"\n" + lines


def columns(file: bytes, dice: random.Random) -> bytes:
    """Drop, repeat or rename columns in the header only."""
    header, _, lines = file.partition(b"\n")
    names = header.split(b",")
    at = dice.randrange(len(names))
    names[at : at + 1] = dice.choice(([], [names[at]] * 2, [b"x"], [dice.choice(names)], [names[at]] * 5000))
    return b",".join(names) + b"\n" + lines


def body(file: bytes, dice: random.Random) -> bytes:
    header = file.index(b"\n")
    return file[:header] + of_bytes(file[header:], dice)


def truncated(file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def many(file: bytes, dice: random.Random) -> bytes:
    return file + dice.choice((b"\n", b",,,,,,,,\n", b'"\n', file.splitlines()[-1] + b"\n")) * dice.choice(
        (70, 200_000)
    )


def made(case: int) -> tuple[str, bytes]:
    dice = random.Random(case)
    mutate = (cells, cells, columns, body, truncated, many)[case % 6]
    return mutate.__name__, mutate(dice.choice(FILES), dice)


def unharmed() -> bytes:
    return FILES[0]
