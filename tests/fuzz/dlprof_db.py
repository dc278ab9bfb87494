"""Mutated databases of DLProf: one that tracekit wrote, one with few rows, and public ones where there are any."""

from __future__ import annotations

import functools
import random
import sqlite3
import tempfile
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import tracekit as tk
from tests.builders.dlprof_db import database
from tests.fuzz import sqlite_pages
from tests.fuzz.changes import of_bytes
from tests.fuzz.nsys_sqlite import header, literal, loops, moved_pages, numbers, one_page, truncated, whole_file

FORMAT, SUFFIX = "dlprof-db", ".sqlite"
ROOT = Path(__file__).parents[2]
CAPTURE = ROOT / "fixtures" / "ops" / "pyprof_like.nsys-rep"
PUBLIC = ROOT.parent / "shared" / "corpus" / "dlprof"
ROWS = 60
RARELY = 50


def without_indexes(file: bytes) -> bytes:
    """Keep some rows of each table, and no index beside those that tables need."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(file)
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL").fetchall():
            db.execute(f'DROP INDEX "{name}"')
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            if name != "dictionary":
                db.execute(f'DELETE FROM "{name}" WHERE rowid > {ROWS}')
        db.commit()
        db.execute("VACUUM")
        return db.serialize()


@functools.cache
def databases() -> list[tuple[str, bytes]]:
    """The databases that are mutated, with their names."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "written.sqlite"
        with tk.load(CAPTURE) as trace:
            trace.rollup(tensor_cores="dlprof").export(path, format="dlprof-db")
        written = without_indexes(path.read_bytes())
        few = database(Path(folder) / "few.sqlite", calls=200).read_bytes()
    public = [("public", without_indexes(p.read_bytes())) for p in sorted(PUBLIC.rglob("*.sqlite"))[:1]]
    paged = [("written, in 512", sqlite_pages.repaged(written, 512)), ("few, deep", sqlite_pages.repaged(few, 512))]
    return [("written", written), ("few", few), *paged, *public]


def values(file: bytes, dice: random.Random) -> bytes:
    """Change values of some rows of some columns, ids among them, and double rows."""
    statements = []
    for _ in range(dice.choice((1, 2, 5))):
        table = dice.choice(sqlite_pages.table_names(file))
        column = dice.choice(sqlite_pages.columns_of(file, table))
        where = dice.choice(("", f"WHERE rowid = {dice.randrange(1, ROWS)}", "WHERE rowid % 3 = 0"))
        statements.append(f'UPDATE OR IGNORE "{table}" SET "{column}" = {literal(dice)} {where}')
    return sqlite_pages.edited(file, *statements)


def ids(file: bytes, dice: random.Random) -> bytes:
    """Write tables anew without keys, so that ids repeat, are missing, or name rows that are not there."""
    table = dice.choice(sqlite_pages.table_names(file))
    columns = sqlite_pages.columns_of(file, table)
    named = dice.choice([c for c in columns if c == "id" or c.endswith("_id")] or columns)
    value = dice.choice(("1", "NULL", "rowid / 2", "rowid + 5", literal(dice)))
    return sqlite_pages.edited(
        file,
        f'CREATE TABLE x AS SELECT * FROM "{table}"',
        f'DROP TABLE "{table}"',
        f'ALTER TABLE x RENAME TO "{table}"',
        f'UPDATE "{table}" SET "{named}" = {value}',
        *[f'INSERT INTO "{table}" SELECT * FROM "{table}"'] * dice.choice((0, 1, 6)),
    )


def tables(file: bytes, dice: random.Random) -> bytes:
    """Drop, empty and rename tables and columns."""
    table = dice.choice(sqlite_pages.table_names(file))
    column = dice.choice(sqlite_pages.columns_of(file, table))
    ways = (
        f'DROP TABLE "{table}"',
        f'DELETE FROM "{table}"',
        f'ALTER TABLE "{table}" DROP COLUMN "{column}"',
        f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{dice.choice((column.upper(), "x", "rowid"))}"',
    )
    return sqlite_pages.edited(file, dice.choice(ways))


def any_bytes(file: bytes, dice: random.Random) -> bytes:
    return file[:100] + of_bytes(file[100:], dice, keep_size=True)


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(whole_file, any_bytes, truncated, header, numbers, one_page, moved_pages, loops, tables),
    *(values, values, ids, ids),
)


def unharmed() -> bytes:
    return databases()[0][1]


def made(case: int) -> tuple[str, bytes]:
    dice = random.Random(case)
    name, file = dice.choice(databases())
    changes = MUTATIONS if case % 2 else sqlite_pages.RARE if case % RARELY == 0 else sqlite_pages.CHANGES
    change = dice.choice(changes)
    return f"{name}, {change.__name__}", change(file, dice)
