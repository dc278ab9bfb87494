"""Mutated databases of nvprof and sessions of the NVIDIA Visual Profiler."""

from __future__ import annotations

import base64
import gzip
import random
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from tests.fuzz.changes import edge, of_bytes
from tests.readers.test_nvprof import DATABASE, SESSION

FORMAT, SUFFIX = "nvprof", ".nvprof"
DATA, WHOLE = DATABASE.read_bytes(), SESSION.read_bytes()
HEADER = 100


def pages(dice: random.Random) -> bytes:
    return DATA[:HEADER] + of_bytes(DATA[HEADER:], dice)


def truncated(dice: random.Random) -> bytes:
    return dice.choice((DATA, WHOLE))[: dice.randrange(HEADER, len(WHOLE))]


def values(dice: random.Random) -> bytes:
    """Set values of some columns to numbers on the edge, strings, blobs and nulls."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.nvprof"
        path.write_bytes(DATA)
        with closing(sqlite3.connect(path)) as db:
            tables = [
                n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%INT%'")
            ]
            for _ in range(dice.choice((1, 3, 10))):
                table = dice.choice(tables)
                column = dice.choice(list(db.execute(f"SELECT name FROM pragma_table_info('{table}')")))[0]
                number = edge(dice) - dice.choice((0, 1 << 63))
                value = dice.choice((number if -(1 << 63) <= number < 1 << 63 else 0, "text", b"\xff\x00", None, 0.5))
                with suppress(sqlite3.Error):
                    db.execute(f"UPDATE {table} SET {column} = ? WHERE random() % 3", (value,))
            db.commit()
        return path.read_bytes()


def tables(dice: random.Random) -> bytes:
    """Drop columns and tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.nvprof"
        path.write_bytes(DATA)
        with closing(sqlite3.connect(path)) as db:
            names = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'CUPTI%'")]
            for table in dice.sample(names, 3):
                column = dice.choice(list(db.execute(f"SELECT name FROM pragma_table_info('{table}')")))[0]
                change = dice.choice((f"DROP TABLE {table}", f"ALTER TABLE {table} DROP COLUMN {column}"))
                with suppress(sqlite3.Error):
                    db.execute(change)
            db.commit()
        return path.read_bytes()


def session(dice: random.Random) -> bytes:
    return WHOLE[:HEADER] + of_bytes(WHOLE[HEADER:], dice)


def packed(dice: random.Random) -> bytes:
    """Pack a mutated database, of which the compressed bytes may also be mutated."""
    data = gzip.compress(dice.choice((pages, values, tables))(dice))
    data = of_bytes(data, dice) if dice.random() < 0.5 else data
    return b"<session><timelinepdm><pdm><split>" + base64.b64encode(data) + b"</split></pdm></timelinepdm></session>"


def made(case: int) -> tuple[str, bytes]:
    ways = (pages, truncated, values, values, tables, session, packed)
    mutate = ways[case % len(ways)]
    return mutate.__name__, mutate(random.Random(case))


def unharmed() -> bytes:
    return DATA
