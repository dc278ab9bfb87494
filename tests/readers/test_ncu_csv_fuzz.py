"""Mutated and cut CSV of Nsight Compute ends in an error of ours or in a trace as declared.

These are some cases for coverage; ``tests/fuzz`` runs many more.
"""

from __future__ import annotations

import random
import time
import warnings
from pathlib import Path

import pytest
from tests.builders.ncu_csv import FOLDER
from tracekit import schemas
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.plan import LiveCapture, RecordedTables
from tracekit.readers.ncu_csv import frame, open_capture, sniff
from tracekit.registry.source import Source

CASES = 40
SECONDS = 5.0
LINES = 30
TOKENS = (
    b'"',
    b'""',
    b",",
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xff\xfe",
    b'","',
    b"==ERROR== ",
    b"nan",
    b"1e999",
    b"-",
    b"9" * 40,
)
TOKENS += (
    b":",
    b'"  "',
    b":none",
    b'"ID","Process ID","',
    b'"Domain","Range:',
    b'"Device Attribute","',
    b'"Kernel Name","',
    b"\x1e",
)


def short(name: str) -> bytes:
    """The first rows of a capture."""
    return b"\n".join((FOLDER / name).read_bytes().split(b"\n")[:LINES]) + b"\n"


FILES = [short(p.name) for p in sorted(FOLDER.glob("*.csv"))]


def mutated(dice: random.Random) -> bytes:
    """Change a capture at some places, join it with another, cut it."""
    data = bytearray(dice.choice(FILES))
    if dice.random() < 0.2:
        data += dice.choice(FILES)
    for _ in range(dice.choice((1, 1, 3, 20))):
        at, token = dice.randrange(len(data) + 1), dice.choice(TOKENS)
        size = dice.choice((0, 1, 10, 2000))
        way = dice.randrange(4)
        if way == 0:
            data[at : at + len(token)] = token
        elif way == 1:
            data[at:at] = token
        elif way == 2:
            del data[at : at + size]
        else:
            data[at:at] = data[at : at + size]
    return bytes(data[: dice.randrange(len(data) + 1)] if dice.random() < 0.2 else data)


def read(path: Path) -> None:
    """Read everything, and hold it against the declarations."""
    source = Source(path)
    sniff(source)
    trace = RecordedTables(LiveCapture(open_capture(source)), path=path)
    for name, schema in schemas.tables().items():
        table = trace.read_many({name: schema.names})[name]
        table.validate(full=True)
        assert table.num_rows == trace.count_many([name])[name]


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.parametrize("seed", range(10))
def test_mutations(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mutated.csv"
    for case in range(CASES // 10):
        dice = random.Random(f"{seed}/{case}")
        monkeypatch.setattr(frame, "BLOCK_BYTES", dice.choice((100, 10_000, 1 << 24)))
        path.write_bytes(mutated(dice))
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TracekitWarning)
            try:
                read(path)
            except TracekitError as e:
                assert str(e).startswith(f"{path}: "), (seed, case)  # noqa: PT017
            except Exception as e:
                raise AssertionError(f"seed {seed}, case {case}") from e
        assert time.monotonic() - began < SECONDS, (seed, case)
