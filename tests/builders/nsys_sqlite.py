"""Exports to test with: real captures edited through SQL, and a look at whether reading left a file as it was."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import tracekit as tk
from tracekit.errors import TracekitError, TracekitWarning

FIXTURES = Path(__file__).parents[2] / "fixtures"
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


def edited(folder: Path, *statements: str, of: str = "graph_node", name: str = "edited.sqlite") -> Path:
    """Copy a real capture and change it."""
    path = folder / name
    shutil.copyfile(FIXTURES / f"{of}.sqlite", path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def plain(path: Path, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Run a query through the standard library."""
    with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True)) as connection:
        return connection.execute(sql, parameters).fetchall()


def columns_of(path: Path, table: str) -> set[str]:
    """Names of the columns of a source table; none if it is absent."""
    return {name for (name,) in plain(path, f"SELECT name FROM pragma_table_info('{table}')")}


@contextlib.contextmanager
def untouched(path: Path) -> Iterator[None]:
    """Assert that a file keeps its bytes and times, and that nothing appears beside it."""
    before = path.read_bytes(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())
    yield
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(path.parent.iterdir())) == before


def outcome(path: Path, format: str | None = None) -> dict[str, str]:
    """Read every table of a damaged file: each works, or raises an error of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        try:
            trace = tk.load(path, format)
        except TracekitError as e:
            return {"load": _named(e, path)}
        with trace:
            return {name: _outcome(trace, name) for name in trace.tables}


def _outcome(trace: tk.Trace, name: str) -> str:
    try:
        trace.count(name)
        table: pa.Table = trace[name]
    except TracekitError as e:
        return _named(e, trace.path)
    table.validate(full=True)
    return "read"


def _named(error: TracekitError, path: Path | None) -> str:
    """Name the kind of an error, which says the file and what to do."""
    assert str(error).startswith(f"{path}: "), error
    assert error.hint, error
    return type(error).__name__


CHAINS = {
    "cpu_samples": ("SELECT rowid, id FROM COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"),
    "osrt_calls": ("SELECT rowid, callchainId FROM OSRT_API", "OSRT_CALLCHAINS"),
    "api_calls": ("SELECT rowid, callchainId FROM CUPTI_ACTIVITY_KIND_RUNTIME", "CUDA_CALLCHAINS"),
}
"""The rows of a declared table with the numbers of their call chains, and the source table of these."""
FRAME = ("symbol", "module", "kernelMode", "thumbCode", "unresolved", "specialEntry", "originalIP", "unwindMethod")


def stacks_of(path: Path) -> tuple[list[dict[str, object]], dict[str, dict[object, int]]]:
    """The rows of ``stacks``, and the stack of each row by table, made in a loop over the rows of SQLite."""
    numbers: dict[tuple[object, ...], int] = {}
    of_rows: dict[str, dict[object, int]] = {}
    names = dict(plain(path, "SELECT id, value FROM StringIds"))
    enum = "ENUM_STACK_UNWIND_METHOD"
    methods = dict(plain(path, f"SELECT id, label FROM {enum}")) if columns_of(path, enum) else {}
    for table, (rows, chains) in CHAINS.items():
        known = columns_of(path, chains)
        columns = ", ".join(c if c in known else "NULL" for c in FRAME)
        listed: dict[object, list[tuple[object, ...]]] = {}
        for chain, *frame in (
            plain(path, f"SELECT id, {columns} FROM {chains} ORDER BY id, stackDepth") if known else ()
        ):
            listed.setdefault(chain, []).insert(0, tuple(frame))
        for frames in listed.values():
            for end in range(1, len(frames) + 1):
                numbers.setdefault(tuple(frames[:end]), len(numbers) + 1)
        source = rows.rpartition(" ")[2]
        pairs = plain(path, rows) if columns_of(path, source) else ()
        of_rows[table] = {row: numbers[tuple(listed[chain])] for row, chain in pairs if chain in listed}
    made = []
    for frames, number in numbers.items():
        symbol, module, *flags, address, method = frames[-1]  # type: ignore[misc]
        kernel, thumb, unresolved, special = (None if f is None else bool(f) for f in flags)
        row = {"stack_id": number, "parent_id": numbers.get(frames[:-1]), "depth": len(frames)}
        row |= {"symbol": names[symbol], "module": re.sub(r"(?s)^[/.~].*/", "", str(names[module]))}
        row |= {"kernel_mode": kernel, "thumb_code": thumb, "unresolved": unresolved, "special_entry": special}
        made.append({**row, "original_ip": address, "unwind_method": methods.get(method), "line": None})
    return made, of_rows
