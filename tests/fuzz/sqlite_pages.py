"""Damage to the pages and the schema of SQLite files, for every format that is kept in one."""

from __future__ import annotations

import functools
import random
import sqlite3
import struct
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from tests.fuzz.changes import edge

HEADER = 100
MODES = 18
LEAF, INNER = 13, 5
NEVER = 0xFFFFFFFF
Change = Callable[[bytes, random.Random], bytes]


def page_size(file: bytes) -> int:
    size: int = struct.unpack_from(">H", file, 16)[0]
    return 1 << 16 if size == 1 else size


def opened(file: bytes) -> closing[sqlite3.Connection]:
    """Open a copy in memory, in which the schema may be edited, and which is not in the mode of a write-ahead log."""
    db = sqlite3.connect(":memory:")
    db.deserialize(changed(file, (MODES, b"\1\1")))
    db.execute("PRAGMA writable_schema = ON")
    return closing(db)


def edited(file: bytes, *statements: str) -> bytes:
    """Run statements; those that fail are left out."""
    with opened(file) as db:
        for statement in statements:
            with suppress(sqlite3.Error):
                db.execute(statement)
        db.commit()
        return changed(db.serialize(), (MODES, file[MODES : MODES + 2]))


class Cell(NamedTuple):
    """Where a row of a leaf page is.

    Attributes:
        pointer: Position of what leads to it.
        at: Its own position.
        payload: Bytes of its record.
        record: Position of the record.
        end: Where its part on the page ends; on overflow, there stands the number of the next page.
    """

    pointer: int
    at: int
    payload: int
    record: int
    end: int


class Pages:
    """The pages of a file that is whole, as a list of trees; positions count from the beginning of the file."""

    def __init__(self, file: bytes) -> None:
        self.file = file
        self.size = page_size(file)
        self.usable = self.size - file[20]
        self.count = len(file) // self.size

    def head(self, page: int) -> int:
        return (page - 1) * self.size + (HEADER if page == 1 else 0)

    def kind(self, page: int) -> int:
        return self.file[self.head(page)]

    def pointers(self, page: int) -> list[int]:
        """Positions of what leads to the cells of a page."""
        head = self.head(page)
        (number,) = struct.unpack_from(">H", self.file, head + 3)
        first = head + (12 if self.kind(page) == INNER else 8)
        return [first + 2 * n for n in range(number)]

    def children(self, page: int) -> list[int]:
        """Positions of the numbers of the pages below an inner page."""
        begin = (page - 1) * self.size
        return [begin + self.short(p) for p in self.pointers(page)] + [self.head(page) + 8]

    def short(self, at: int) -> int:
        value: int = struct.unpack_from(">H", self.file, at)[0]
        return value

    def number(self, at: int) -> int:
        value: int = struct.unpack_from(">I", self.file, at)[0]
        return value

    def varint(self, at: int) -> tuple[int, int]:
        value = 0
        for n in range(8):
            byte = self.file[at + n]
            value = value << 7 | byte & 0x7F
            if byte < 0x80:
                return value, at + n + 1
        return value << 8 | self.file[at + 8], at + 9

    def tree(self, root: int) -> tuple[list[int], list[int]]:
        """Inner pages and leaf pages of a table."""
        inner: list[int] = []
        level = [root]
        while self.kind(level[0]) == INNER:
            inner += level
            level = [self.number(at) for page in level for at in self.children(page)]
        return inner, level if self.kind(level[0]) == LEAF else []

    def cells(self, page: int) -> list[Cell]:
        """The rows of a leaf page."""
        begin, found = (page - 1) * self.size, []
        for pointer in self.pointers(page):
            at = begin + self.short(pointer)
            payload, middle = self.varint(at)
            _, record = self.varint(middle)
            most, least = self.usable - 35, (self.usable - 12) * 32 // 255 - 23
            kept = least + (payload - least) % (self.usable - 4)
            local = payload if payload <= most else kept if kept <= most else least
            found.append(Cell(pointer, at, payload, record, record + local))
        return found

    @functools.cached_property
    def tables(self) -> list[tuple[list[int], list[int]]]:
        """The trees of the tables, the schema among them."""
        with opened(self.file) as db:
            roots = [
                r for (r,) in db.execute("SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND rootpage > 0")
            ]
        found = [self.tree(root) for root in [1, *roots]]
        return [(inner, leaves) for inner, leaves in found if leaves]

    def deep(self) -> list[tuple[list[int], list[int]]]:
        """The trees that have inner pages; all of them, if none has."""
        return [t for t in self.tables if t[0]] or self.tables

    def long_cells(self) -> list[Cell]:
        """Rows that go on on overflow pages."""
        rows = [c for _, leaves in self.tables for page in leaves for c in self.cells(page)]
        return [c for c in rows if c.end - c.record < c.payload]


@functools.lru_cache(maxsize=64)
def pages(file: bytes) -> Pages:
    return Pages(file)


def changed(file: bytes, *places: tuple[int, bytes]) -> bytes:
    """Put bytes in some places."""
    out = bytearray(file)
    for at, data in places:
        out[at : at + len(data)] = data
    return bytes(out[: len(file)])


def number(value: int) -> bytes:
    return struct.pack(">I", value & NEVER)


def child_pointers(file: bytes, dice: random.Random) -> bytes:
    """Let an inner page lead to a page twice, to itself, to its parent, to a page of another table, or nowhere."""
    it = pages(file)
    inner, leaves = dice.choice(it.deep())
    if not inner:
        return one_cell(file, dice)
    places = []
    for page in dice.sample(inner, min(len(inner), dice.choice((1, 1, 3)))):
        at = dice.choice(it.children(page))
        others = [p for _, other in it.tables if other != leaves for p in other] or leaves
        to = dice.choice((dice.choice(leaves), dice.choice(inner), page, dice.choice(others), edge(dice), it.count + 1))
        places.append((at, number(to)))
    return changed(file, *places)


def directed(file: bytes, dice: random.Random) -> bytes:
    """Let every child of inner pages be the same page: few pages, and very many ways through them."""
    it = pages(file)
    inner, _ = dice.choice(it.deep())
    places = []
    for page in inner[: dice.choice((1, 2, len(inner) or 1))]:
        children = it.children(page)
        to = it.number(dice.choice(children))
        places += [(at, number(to)) for at in children]
    return changed(file, *places) if places else one_cell(file, dice)


def swapped_children(file: bytes, dice: random.Random) -> bytes:
    """Exchange two children of an inner page, keys left as they are."""
    it = pages(file)
    inner, _ = dice.choice(it.deep())
    if not inner:
        return one_cell(file, dice)
    a, b = (dice.choice(it.children(dice.choice(inner))) for _ in range(2))
    return changed(file, (a, number(it.number(b))), (b, number(it.number(a))))


def keys(file: bytes, dice: random.Random) -> bytes:
    """Change keys of inner pages."""
    it = pages(file)
    inner, _ = dice.choice(it.deep())
    places = []
    for page in inner[: dice.choice((1, 5))]:
        chosen = dice.sample(it.children(page)[:-1], min(len(it.children(page)) - 1, dice.choice((1, 2, 9))))
        values = [dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256))) for _ in chosen]
        places += [(at + 4, bytes([value])) for at, value in zip(chosen, values, strict=True)]
    return changed(file, *places) if places else one_cell(file, dice)


def cell_pointers(file: bytes, dice: random.Random) -> bytes:
    """Let cell pointers of a leaf lead elsewhere on the page, or to the same row."""
    it = pages(file)
    page = dice.choice([p for _, leaves in it.tables for p in leaves])
    found = it.pointers(page)
    if not found:
        return one_cell(file, dice)
    others = [it.short(p) for p in found]
    places = []
    for at in dice.sample(found, min(len(found), dice.choice((1, 2, 50)))):
        near = dice.choice(others) + dice.choice((0, 1, 2, -1, 3))
        places.append((at, struct.pack(">H", dice.choice((near, near, near, dice.randrange(it.size))) & 0xFFFF)))
    return changed(file, *places)


def cell_counts(file: bytes, dice: random.Random) -> bytes:
    """Change how many cells a page says it has, or its kind."""
    it = pages(file)
    page = dice.choice([p for inner, leaves in it.tables for p in (*inner, *leaves)])
    head = it.head(page)
    if dice.random() < 0.3:
        return changed(file, (head, bytes([dice.choice((0, 2, 5, 10, 13, 255))])))
    there = it.short(head + 3)
    return changed(
        file, (head + 3, struct.pack(">H", dice.choice((0, there - 1, there + 1, 2 * there, 0xFFFF)) & 0xFFFF))
    )


def one_cell(file: bytes, dice: random.Random) -> bytes:
    """Change the first bytes of a row: its size, its rowid, the size of its header, the types of its values."""
    it = pages(file)
    page = dice.choice([p for _, leaves in it.tables for p in leaves if it.pointers(p)])
    places = []
    for cell in dice.choices(it.cells(page), k=dice.choice((1, 1, 10))):
        at = dice.choice((cell.at, cell.at + 1, cell.record, cell.record + 1 + dice.randrange(12)))
        places.append((at, bytes([dice.choice((0, 1, 7, 8, 9, 10, 12, 13, 0x7F, 0x80, 0xFF, dice.randrange(256)))])))
    return changed(file, *places)


def long_payloads(file: bytes, dice: random.Random) -> bytes:
    """Let rows claim to be up to a billion bytes long: the bytes behind their beginning become overflow pages."""
    it = pages(file)
    page = dice.choice([p for _, leaves in it.tables for p in leaves if it.pointers(p)])
    size = dice.choice((5000, 70_000, 1 << 20, 10**9, (1 << 31) - 1, (1 << 32) + 5))
    places = []
    for cell in dice.choices(it.cells(page), k=dice.choice((1, 1, 5, 40))):
        parts = [(size >> 7 * n) & 0x7F for n in range(5)]
        places.append((cell.at, bytes([*(p | 0x80 for p in parts[:0:-1]), parts[0]])))
    return changed(file, *places)


def overflow_chains(file: bytes, dice: random.Random) -> bytes:
    """Let overflow pages lead to themselves, to those of another row, to pages of a table, or nowhere."""
    it = pages(file)
    rows = it.long_cells()
    if not rows:
        return long_payloads(file, dice)
    places = []
    for cell in dice.choices(rows, k=dice.choice((1, 1, 4))):
        first = it.number(cell.end)
        other = it.number(dice.choice(rows).end)
        to = dice.choice((first, other, other, dice.choice(dice.choice(it.tables)[1]), edge(dice), 1))
        at = dice.choice((cell.end, (first - 1) * it.size))
        places.append((at, number(to)))
    return changed(file, *places)


def serial_types(file: bytes, dice: random.Random) -> bytes:
    """Exchange types of values within rows."""
    it = pages(file)
    page = dice.choice([p for _, leaves in it.tables for p in leaves if it.pointers(p)])
    places = []
    for cell in it.cells(page):
        width = file[cell.record]
        if 3 <= width < 0x80 and dice.random() < 0.5:
            types = bytearray(file[cell.record + 1 : cell.record + width])
            a, b = dice.randrange(len(types)), dice.randrange(len(types))
            types[a], types[b] = types[b], types[a]
            places.append((cell.record + 1, bytes(types)))
    return changed(file, *places)


def freelist(file: bytes, dice: random.Random) -> bytes:
    """Call pages free that belong to tables."""
    it = pages(file)
    page = dice.choice(dice.choice(it.tables)[1])
    return changed(file, (32, number(page)), (36, number(dice.choice((1, 3, it.count, edge(dice))))))


def header(file: bytes, dice: random.Random) -> bytes:
    """Change numbers of the header that the layout of pages depends on."""
    values = {
        16: struct.pack(">H", dice.choice((1, 512, 1024, 4096, 8192, 1000))),
        18: bytes([dice.choice((1, 2, 3))] * 2),
        20: bytes([dice.choice((0, 1, 32, 255))]),
        28: number(dice.choice((0, 1, len(file) // page_size(file) - 1, edge(dice)))),
        44: number(dice.choice((0, 1, 4, 5))),
        52: number(dice.choice((0, 1, 3))),
        56: number(dice.choice((0, 1, 2, 3, 7))),
    }
    at = dice.choice(list(values))
    return changed(file, (at, values[at]))


def table_names(file: bytes) -> list[str]:
    with opened(file) as db:
        sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        return [n for (n,) in db.execute(sql)]


def columns_of(file: bytes, table: str) -> list[str]:
    with opened(file) as db:
        return [c for (c,) in db.execute("SELECT name FROM pragma_table_info(?)", [table])] or ["x"]


def added_columns(file: bytes, dice: random.Random) -> bytes:
    """Add columns of which rows hold nothing: generated ones, and defaults."""
    name = dice.choice(table_names(file))
    column = dice.choice(columns_of(file, name))
    long = "x" * dice.choice((10, 1000, 100_000))
    kind = dice.choice((f"DEFAULT '{long}'", "DEFAULT 7", "AS (1)", f"AS ('{long}')", f"AS (zeroblob({10**9}))"))
    return edited(
        file,
        f'ALTER TABLE "{name}" RENAME COLUMN "{column}" TO "{column}_before"',
        f'ALTER TABLE "{name}" ADD COLUMN "{column}" {kind}',
    )


def rewritten(file: bytes, dice: random.Random) -> bytes:
    """Change statements of the schema."""
    name = dice.choice(table_names(file))
    column = dice.choice(columns_of(file, name))
    this, times = f"WHERE name = '{name}'", dice.choice((99, 990, 5000))
    texts = (
        f"replace(sql, 'CREATE TABLE', 'CREATE TABLE /*' || '{'x' * dice.choice((9, 10**6, 10**7))}' || '*/ ')",
        f"""replace(sql, '"{column}"', '[{column}]')""",
        f"replace(sql, '{column}', '{column.swapcase()}')",
        f"replace(sql, '(', '(\"{column.swapcase()}\", ')",
        f"replace(sql, '(', '(\"{column.swapcase()}\" AS (zeroblob(1000000000)), ')",
        "replace(sql, ')', ') WITHOUT ROWID')",
        "replace(sql, ')', ', CHECK (randomblob(1000000000)))')",
        "replace(sql, 'CREATE TABLE', 'CREATE VIRTUAL TABLE')",
        "replace(sql, 'CREATE TABLE', 'create  table')",
        "replace(sql, 'INTEGER', 'TEXT')",
        "replace(sql, 'TEXT', 'REAL')",
        "replace(sql, 'INTEGER', 'INTEGER PRIMARY KEY')",
        f"substr(sql, 1, {dice.randrange(300)})",
        f"'CREATE TABLE \"{name}\" (a' || replace(hex(zeroblob({times})), '00', ', a') || ')'",
        f"'CREATE TABLE \"{name}\" (a' || replace(hex(zeroblob({times})), '00', ', UNIQUE (a)') || ')'",
        "x'00ff80'",
        "NULL",
        "5",
    )
    others = (
        f"UPDATE sqlite_schema SET rootpage = {dice.randrange(60)} {this}",
        f"UPDATE sqlite_schema SET rootpage = (SELECT max(rootpage) FROM sqlite_schema) {this}",
        f"UPDATE sqlite_schema SET type = 'view' {this}",
        f"UPDATE sqlite_schema SET name = upper(name) {this}",
        f"UPDATE sqlite_schema SET rootpage = 0 {this}",
        f"DELETE FROM sqlite_schema {this}",
    )
    if dice.random() < 0.7:
        return edited(file, f"UPDATE sqlite_schema SET sql = {dice.choice(texts)} {this}")
    return edited(file, dice.choice(others))


def views(file: bytes, dice: random.Random) -> bytes:
    """Put a view in the place of a table, one with very many rows."""
    name = dice.choice(table_names(file))
    columns = ", ".join(f'1 AS "{c}"' for c in columns_of(file, name))
    endless = f"WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT {columns} FROM r"
    view = dice.choice((endless, f"SELECT * FROM {name}", f"SELECT {columns} FROM x a, x b, x c, x d"))
    return edited(file, f'ALTER TABLE "{name}" RENAME TO "x"', f'CREATE VIEW "{name}" AS {view}')


def beside(file: bytes, dice: random.Random) -> bytes:
    """Add triggers, indexes on expressions, statistics, virtual tables, and indexes of other rows."""
    name = dice.choice(table_names(file))
    column = dice.choice(columns_of(file, name))
    ways = (
        [f'CREATE TRIGGER t AFTER INSERT ON "{name}" BEGIN SELECT randomblob(1000000000); END'],
        [f'CREATE INDEX i ON "{name}" (abs("{column}"), "{column}" || \'x\')'],
        ["ANALYZE", "UPDATE sqlite_stat1 SET stat = '1000000000 1'"],
        ["ANALYZE", "INSERT INTO sqlite_stat1 SELECT * FROM sqlite_stat1, sqlite_stat1, sqlite_stat1"],
        ["CREATE VIRTUAL TABLE v USING fts5(a)", "CREATE VIRTUAL TABLE w USING rtree(a, b, c)"],
        [
            f'CREATE INDEX i ON "{name}" ("{column}")',
            f"UPDATE sqlite_schema SET sql = sql || ' WHERE \"{column}\" IS NULL' WHERE name = 'i'",
        ],
        [
            f"INSERT INTO sqlite_schema SELECT type, name || '_{n}', tbl_name || '_{n}', rootpage, "
            f"replace(sql, '{name}', '{name}_{n}') FROM sqlite_schema WHERE name = '{name}'"
            for n in range(dice.choice((1, 300)))
        ],
    )
    return edited(file, *dice.choice(ways))


def many_entries(file: bytes, dice: random.Random) -> bytes:
    """Add very many tables to the schema, or wide ones."""
    tables, columns = dice.choice(((15_000, 1), (200, 1900), (1, 2000), (2000, 20)))
    with opened(file) as db:
        wide = ", ".join(f"c{n}" for n in range(columns))
        rows = [(f"m{n}", f"m{n}", f"CREATE TABLE m{n} ({wide})") for n in range(tables)]
        db.executemany("INSERT INTO sqlite_schema VALUES ('table', ?, ?, 2, ?)", rows)
        db.commit()
        return db.serialize()


CHANGES: Sequence[Change] = (
    *(child_pointers, child_pointers, directed, swapped_children, keys, cell_pointers, cell_pointers, cell_counts),
    *(one_cell, one_cell, long_payloads, overflow_chains, serial_types, freelist, header, added_columns, rewritten),
    *(rewritten, views, beside),
)
RARE: Sequence[Change] = (many_entries,)


def repaged(file: bytes, size: int, *, reserved: int = 0, encoding: str = "UTF-8", wal: bool = False) -> bytes:
    """Write a database anew: with pages of another size, bytes at their end left alone, another encoding of texts."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute(f"PRAGMA page_size = {size}")
        db.execute(f"PRAGMA encoding = '{encoding}'")
        db.execute("PRAGMA user_version = 1")  # writes the first page
        empty = bytearray(db.serialize())
    empty[20] = reserved
    empty[105:107] = struct.pack(">H", (size - reserved) & 0xFFFF)
    with closing(sqlite3.connect(":memory:")) as to, closing(sqlite3.connect(":memory:")) as source:
        to.deserialize(bytes(empty))
        source.deserialize(file)
        to.executescript("\n".join(source.iterdump()))
        data = to.serialize()
    return changed(data, (MODES, b"\2\2")) if wal else data
