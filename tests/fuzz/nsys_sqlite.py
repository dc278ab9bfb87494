"""Mutated exports of nsys: real ones with few rows a table, their pages damaged, their values and tables changed."""

from __future__ import annotations

import functools
import hashlib
import random
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
from tests.fuzz import sqlite_pages
from tests.fuzz.changes import edge, of_bytes
from tests.fuzz.sqlite_pages import HEADER, page_size
from tracekit.readers.nsys.export import list_decoded_tables
from tracekit.readers.nsys.lookups import find_arrow_type
from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys.tables import ROWID

FORMAT, SUFFIX = "nsys-sqlite", ".sqlite"
ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
FIXTURES = ("graph_node", "nvtx_features", "gpu_metrics")
# Public exports by the beginning of their SHA-256, of 2020.3 without a version, 2022.1 and 2026.1.
PUBLIC = ("d15e5e4317cc6db1", "9761786ccb5391ec", "84c90236cd88d305")
ROWS = 40
DEEP = ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY")
RARELY = 50
INTERIOR = (2, 5)
KEPT = list_decoded_tables() | {"ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND", "ENUM_NSYS_EVENT_TYPE", "ANALYSIS_FILE"}
LOOKUPS = {"GENERIC_EVENTS": ["genericEventId", "timestamp", "typeId", "globalTid"]}
"""Columns of source tables in which rows of other tables are looked up."""
RANGE_AND_MARKS = (59, 34, 34)
"""NVTX event types of the rows of a made export."""


def cut_down(path: Path) -> bytes:
    """Keep some rows of the tables that are read; strings keep their numbers."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(path.read_bytes())
        for name, kind in db.execute("SELECT name, type FROM sqlite_schema WHERE type IN ('table', 'view')").fetchall():
            if name not in KEPT and not name.startswith("sqlite_"):
                db.execute(f'DROP {kind} "{name}"')
            elif kind == "table" and name != "StringIds":
                db.execute(f'DELETE FROM "{name}" WHERE rowid > {ROWS}')
        db.commit()
        db.execute("VACUUM")
        return db.serialize()


def source_columns() -> dict[str, list[str]]:
    """The columns of every source table from which a declared table of events is read."""
    found: dict[str, dict[str, None]] = {}
    for sources in SOURCES.values():
        for table in sources.labels:
            columns = (sources.find_column(table, column) for column in sources.columns)
            found.setdefault(table, {}).update(dict.fromkeys(c for c in columns if c and c.isidentifier()))
    return {table: [c for c in columns if c != ROWID] for table, columns in found.items()}


def is_text(table: str, column: str) -> bool:
    return find_arrow_type(table, column) == pa.string() or column in ("text", "name", "description", "unit")


def made_export() -> bytes:
    """An export with some rows in every source table that is read, whose numbers are small."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize((ROOT / "fixtures" / "empty.sqlite").read_bytes())
        for table, columns in (source_columns() | LOOKUPS).items():
            listed = ", ".join(f'"{c}"' for c in columns)
            db.execute(f"DROP TABLE IF EXISTS {table}")
            db.execute(f"CREATE TABLE {table} ({listed})")
            for row, event_type in enumerate(RANGE_AND_MARKS, 1):
                values = [
                    event_type if c == "eventType" else f"text {row}" if is_text(table, c) else row for c in columns
                ]
                db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", values)
        db.commit()
        db.execute("VACUUM")
        return db.serialize()


@functools.cache
def exports() -> list[tuple[str, bytes]]:
    """The exports that are mutated, with their names; those beside the checkout too, if they are there."""
    found = [(name, cut_down(ROOT / "fixtures" / f"{name}.sqlite")) for name in FIXTURES]
    found.append(("every table", made_export()))
    public = sorted(CORPUS.glob("nsys_*/**/*.sqlite")) if CORPUS.is_dir() else []
    digests = {hashlib.sha256(p.read_bytes()).hexdigest()[:16]: p for p in public}
    return found + [(d, cut_down(digests[d])) for d in PUBLIC if d in digests]


def whole_file(file: bytes, dice: random.Random) -> bytes:
    return file[:16] + of_bytes(file[16:], dice, keep_size=dice.random() < 0.7)


def truncated(file: bytes, dice: random.Random) -> bytes:
    size = page_size(file)
    cut = dice.randrange(len(file))
    return file[: cut // size * size if dice.random() < 0.5 else cut]


def header(file: bytes, dice: random.Random) -> bytes:
    return file[:16] + of_bytes(file[16:HEADER], dice, keep_size=True) + file[HEADER:]


def numbers(file: bytes, dice: random.Random) -> bytes:
    """Lie about pages: how many there are, which are free, which is the first of these."""
    out = bytearray(file)
    for at in (28, 32, 36, 52, 56, 92):
        if dice.random() < 0.3:
            struct.pack_into(">I", out, at, edge(dice) & 0xFFFFFFFF)
    return bytes(out)


def one_page(file: bytes, dice: random.Random) -> bytes:
    """Change bytes of one page: its header, where its rows are, or the rows."""
    size = page_size(file)
    at = dice.randrange(len(file) // size) * size
    head = at + (HEADER if not at else 0)
    end = head + dice.choice((8, 40, size - (head - at)))
    return file[:head] + of_bytes(file[head:end], dice, keep_size=True) + file[end:]


def moved_pages(file: bytes, dice: random.Random) -> bytes:
    """Put a page in the place of another, or zeros."""
    size = page_size(file)
    pages = [file[i : i + size] for i in range(0, len(file), size)]
    for _ in range(dice.choice((1, 3))):
        pages[dice.randrange(1, len(pages))] = dice.choice((dice.choice(pages[1:]), bytes(size)))
    return b"".join(pages)


def loops(file: bytes, dice: random.Random) -> bytes:
    """Let inner pages of a table lead somewhere else, even back to themselves."""
    size = page_size(file)
    out = bytearray(file)
    inner = [at for at in range(size, len(file), size) if file[at] in INTERIOR]
    for at in dice.sample(inner, min(len(inner), dice.choice((1, 2, 9)))):
        place = at + 8 if dice.random() < 0.5 else at + struct.unpack_from(">H", file, at + 12)[0] % (size - 4)
        number = dice.choice((at // size + 1, dice.randrange(len(file) // size) + 1, edge(dice) & 0xFFFFFFFF))
        struct.pack_into(">I", out, place, number)
    return bytes(out) if inner else moved_pages(file, dice)


def edited(file: bytes, dice: random.Random, *statements: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(file)
        db.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            with suppress(sqlite3.Error):
                db.execute(statement)
        db.commit()
        return db.serialize()


def catalogue(file: bytes) -> list[tuple[str, list[str]]]:
    """Tables of a database with their columns."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.deserialize(file)
        names = [n for (n,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return [(n, [c for (c,) in db.execute("SELECT name FROM pragma_table_info(?)", [n])]) for n in names]


@functools.cache
def catalogue_of(which: int) -> list[tuple[str, list[str]]]:
    return catalogue(exports()[which][1])


def literal(dice: random.Random) -> str:
    """Throw a value in SQL."""
    signed = edge(dice) - dice.choice((0, 0, 1 << 63))
    number = signed if -(1 << 63) <= signed < 1 << 63 else 1 << 62
    texts = (
        "''",
        "'12'",
        "'a b'",
        "char(0, 65)",
        "CAST(x'ff41fe' AS TEXT)",
        "replace(hex(zeroblob(50000)), '0', 'ab')",
    )
    return dice.choice(("NULL", str(number), str(number), "1.5", "9e999", "-0.0", "x'00ff'", dice.choice(texts)))


def values(file: bytes, dice: random.Random) -> bytes:
    """Change values of some rows of some columns."""
    tables = [t for t in catalogue(file) if t[1]]
    chosen = [dice.choice(tables) for _ in range(dice.choice((1, 2, 5)))]
    where = lambda: dice.choice(("", f"WHERE rowid = {dice.randrange(1, ROWS)}", "WHERE rowid % 3 = 0"))  # noqa: E731
    return edited(
        file, dice, *(f'UPDATE "{t}" SET "{dice.choice(columns)}" = {literal(dice)} {where()}' for t, columns in chosen)
    )


def tables(file: bytes, dice: random.Random) -> bytes:
    """Drop, rename, double and retype tables and columns."""
    name, columns = dice.choice([t for t in catalogue(file) if t[1]])
    column = dice.choice(columns)
    ways = (
        [f'DROP TABLE "{name}"'],
        [f'DELETE FROM "{name}"'],
        [f'ALTER TABLE "{name}" DROP COLUMN "{column}"'],
        [f'ALTER TABLE "{name}" RENAME COLUMN "{column}" TO "{dice.choice((column.upper(), "x", "rowid"))}"'],
        [f'INSERT INTO "{name}" SELECT * FROM "{name}"'],
        [f'ALTER TABLE "{name}" RENAME TO "x y"', f'CREATE VIEW "{name}" AS SELECT * FROM "x y"'],
        [f'CREATE TABLE "x" AS SELECT * FROM "{name}"', f'DROP TABLE "{name}"', f'ALTER TABLE "x" RENAME TO "{name}"'],
        [f"UPDATE sqlite_schema SET rootpage = {dice.randrange(60)} WHERE name = '{name}'"],
        [f"UPDATE sqlite_schema SET sql = replace(sql, '{column}', '{column}x') WHERE name = '{name}'"],
        [f"UPDATE sqlite_schema SET sql = substr(sql, 1, {dice.randrange(200)}) WHERE name = '{name}'"],
        [f"UPDATE sqlite_schema SET type = 'index' WHERE name = '{name}'"],
        ["PRAGMA user_version = 7", "PRAGMA encoding = 'UTF-16'", f'ANALYZE "{name}"'],
    )
    return edited(file, dice, *dice.choice(ways))


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(whole_file, truncated, header, numbers, one_page, one_page, moved_pages, loops, values, values, values),
    *(tables, tables),
)


@functools.cache
def layouts() -> list[tuple[str, bytes]]:
    """Exports laid out otherwise: deep trees, large pages, bytes left alone, other encodings of texts."""
    (first, small), *_ = exports()
    many = [f'INSERT INTO "{t}" SELECT * FROM "{t}"' for t in DEEP for _ in range(5)]
    large = sqlite_pages.edited(small, *many)
    return [
        (f"{first} in 512", sqlite_pages.repaged(small, 512)),
        (f"{first} deep", sqlite_pages.repaged(large, 512)),
        (f"{first} deep, 64 reserved", sqlite_pages.repaged(large, 1024, reserved=64)),
        (f"{first} in 65536", sqlite_pages.repaged(small, 1 << 16)),
        (f"{first} in UTF-16", sqlite_pages.repaged(small, 1024, encoding="UTF-16le")),
        (f"{first} with a log", sqlite_pages.repaged(small, 4096, wal=True)),
        *exports(),
    ]


def unharmed() -> bytes:
    return exports()[0][1]


def made(case: int) -> tuple[str, bytes]:
    dice = random.Random(case)
    if case % 2:
        name, file = dice.choice(layouts())
        change = dice.choice(sqlite_pages.RARE if case % RARELY == 1 else sqlite_pages.CHANGES)
        return f"{name}, {change.__name__}", change(file, dice)
    listed = exports()
    name, file = listed[case // 2 % len(listed)]
    mutate = MUTATIONS[case // 2 // len(listed) % len(MUTATIONS)]
    return f"{name}, {mutate.__name__}", mutate(file, dice)
