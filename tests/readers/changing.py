"""Reads a file or a folder that changes while it is open; run as a program, so that a crash is seen as one.

``python -m tests.readers.changing PATH FORMAT CHANGE FIRST SECOND MEMBER``: load, read one table, change the file, read
another table, and compare the first one with what it was. Prints what became of the second table as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import tracekit as tk

GARBAGE = b"\x5a"


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 3)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    """Put other bytes in the place of all bytes."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(GARBAGE * size)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(GARBAGE * 1000)


def replace(path: Path) -> None:
    """Put another file under the same name, as a tool does that writes beside it and renames."""
    other = path.with_name("other")
    other.write_bytes(GARBAGE * path.stat().st_size)
    other.replace(path)


def delete(path: Path) -> None:
    path.unlink()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


CHANGES: dict[str, Callable[[Path], None]] = {
    f.__name__: f for f in (truncate, empty, overwrite, grow, replace, delete, pipe)
}


def copied(table: pa.Table) -> dict[str, list[Any]]:
    """Values of a table that share no memory with it."""
    values: dict[str, list[Any]] = table.to_pydict()
    return values


def main(path: str, format: str, change: str, *tables_and_member: str) -> None:
    """Read, change, read again."""
    first, second, member = tables_and_member
    warnings.simplefilter("ignore")
    file = Path(path) / member if member else Path(path)
    os.utime(file, ns=(10**18, 10**18))  # before any clock tick in which it is changed
    said, rows = "", 0
    with tk.load(path, format) as trace:
        table = trace[first]
        before = copied(table)
        CHANGES[change](file)
        try:
            rows = trace[second].num_rows
        except tk.TracekitError as e:
            said = f"{type(e).__name__}: {e}"
        assert copied(table) == before, "a table that was given changed"
        assert trace[first].equals(table)
    assert copied(table) == before, "a table that was given changed when its trace was closed"
    print(json.dumps({"said": said, "rows": rows, "given": table.num_rows}))


def read_all(path: str, format: str, expected: dict[str, pa.Table], warned: list[Any]) -> None:
    """Read all tables; they are as they were, unless there was a warning."""
    with tk.load(path, format) as trace:
        for name in trace.tables:
            table = trace[name]
            table.validate(full=True)
            assert warned or table.equals(expected.setdefault(name, table)), name


def race(path: str, format: str, seconds: str) -> None:
    """Read all tables time and again while a thread truncates the file and writes it anew.

    All tables that are read without a warning are the same.
    """
    file, until = Path(path), time.monotonic() + float(seconds)
    whole, done = file.read_bytes(), threading.Event()
    dice = [3, 7, 2, 11, 5]

    def disturb() -> None:
        nth = 0
        while not done.is_set():
            os.truncate(file, len(whole) // dice[nth % len(dice)])
            file.write_bytes(whole)
            nth += 1

    thread = threading.Thread(target=disturb)
    thread.start()
    ended = {"read": 0, "warned": 0, "error": 0}
    expected: dict[str, pa.Table] = {}
    try:
        while time.monotonic() < until:
            try:
                with warnings.catch_warnings(record=True) as warned:
                    warnings.simplefilter("always")
                    read_all(path, format, expected, warned)
                ended["warned" if warned else "read"] += 1
            except (tk.TracekitError, FileNotFoundError):
                ended["error"] += 1
    finally:
        done.set()
        thread.join()
    print(json.dumps(ended))


if __name__ == "__main__":
    {"main": main, "race": race}[sys.argv[1]](*sys.argv[2:])
