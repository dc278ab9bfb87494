"""Call stacks of Python threads are those of the payloads of NVTX marks, read from a report or from an export."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.nsys_folders import KINDS, as_folder, tables_of
from tests.builders.nsys_rep import SHARED, Parts, Value, event, message, strings
from tests.builders.nsys_sqlite import edited
from tests.readers.test_nsys_blobs import blob_of
from tests.readers.test_nsys_stacks import paths
from tracekit.readers.nsys import stacks

PERIODIC, CUDA = "Python Periodic Sampling", "Python Backtrace on CUDA"
PYSTACKS = SHARED / "captures" / "h200_more" / "pystacks.sqlite"
PROCESS, OTHER = 1 << 48 | 7 << 24, 1 << 48 | 8 << 24
SCHEMA, RUNNING, WAITING = (1 << 32) + 2, 0xFFFFA500, 0xFFBBD6CF
NAMES = ("main", "&lt;module&gt;", "/home/me/app.py", "wait", "/usr/lib/threading.py")
Frame = tuple[int, int, int]


def payload(*frames: Frame, count: int | None = None) -> bytes:
    head = struct.pack("<QII", 1, 2, len(frames) if count is None else count)
    return head + b"".join(struct.pack("<QQiI", *frame, 0xDEAD) for frame in frames)


WAIT, MAIN = payload((3, 4, 355), (0, 2, 20), (1, 2, 41)), payload((0, 2, 21), (1, 2, 41))
MARKS: list[tuple[int, int, int, int, int, bytes]] = [
    (34, 30, PROCESS | 9, 1, WAITING, WAIT),
    (34, 10, PROCESS | 7, 1, RUNNING, MAIN),
    (34, 10, OTHER | 8, 1, RUNNING, WAIT),
    (34, 40, PROCESS | 7, 2, RUNNING, MAIN),
    (34, 50, PROCESS | 7, 1, 5, MAIN[:-1]),
    (34, 60, PROCESS | 7, 1, 5, b""),
    (34, 60, PROCESS | 7, 2, RUNNING, payload()),
    (59, 70, PROCESS | 7, 1, RUNNING, MAIN),
    (34, 80, PROCESS | 7, 3, RUNNING, MAIN),
]
"""Event type, time, thread, domain, color and payload. Domain 1 of the other process has another name."""
DOMAINS = [(PROCESS | 7, 1, PERIODIC), (OTHER | 8, 1, "mine"), (PROCESS | 7, 2, CUDA)]
SAMPLES = [
    (30, 7, 9, "periodic", "Blocking Wait", ("wait", "main", "<module>")),
    (10, 7, 7, "periodic", "Running", ("main", "<module>")),
    (40, 7, 7, "cuda", "Running", ("main", "<module>")),
    (50, 7, 7, "periodic", None, ()),
    (60, 7, 7, "periodic", None, ()),
    (60, 7, 7, "cuda", "Running", ()),
]


def report(folder: Path, names: Sequence[str] = (PERIODIC, CUDA)) -> Path:
    """A report with the marks, whose domains come after them."""

    def mark(row: tuple[int, int, int, int, int, bytes]) -> bytes:
        kind, time, thread, domain, color, data = row
        extended: list[tuple[int, Value]] = [(8, message((9, message((1, SCHEMA), (2, data)))))] if data else []
        ends: list[tuple[int, Value]] = [(10, time + 5)] if kind == 59 else []
        return event(kind, 102, (1, kind), (2, time), (6, color), *extended, (9, thread), *ends, (13, domain))

    domains = [event(75, 102, (1, 75), (2, 1), (7, name), (9, thread), (13, n)) for thread, n, name in DOMAINS]
    schemas = [(2, message((1, SCHEMA), (2, 2), (5, name), (9, 1))) for name in names]
    listed = message((3, message((1, PROCESS), *schemas)))
    path = folder / "made.nsys-rep"
    blocks = [b"".join(map(mark, MARKS)), b"".join(domains)]
    path.write_bytes(Parts(blocks, [strings(*NAMES)], schemas=listed).pack())
    return path


def export(folder: Path, *statements: str) -> Path:
    """The export of that report with ``--include-blobs``."""
    path = edited(
        folder,
        "DELETE FROM NVTX_EVENTS",
        "DELETE FROM StringIds",
        "CREATE TABLE NVTX_PAYLOAD_SCHEMAS (domainId INTEGER, name TEXT)",
        of="nvtx_features",
    )
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executemany("INSERT INTO NVTX_PAYLOAD_SCHEMAS VALUES (1, ?)", [(PERIODIC,), (None,)])
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(NAMES))
        columns = "start, end, eventType, globalTid, domainId, color, binaryData, text"
        rows = [
            (
                time,
                time + 5 if kind == 59 else None,
                kind,
                thread,
                domain,
                color,
                data and blob_of((SCHEMA, data)),
                None,
            )
            for kind, time, thread, domain, color, data in MARKS
        ]
        rows += [(1, None, 75, thread, n, None, None, name) for thread, n, name in DOMAINS]
        db.executemany(f"INSERT INTO NVTX_EVENTS ({columns}) VALUES (?, ?, ?, ?, ?, ?, nullif(?, x''), ?)", rows)
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def samples(path: Path) -> list[tuple[object, ...]]:
    with tk.load(path) as trace:
        known = paths(trace)
        found = []
        assert trace.count("python_samples") == trace["python_samples"].num_rows
        for row in trace["python_samples"].to_pylist():
            number, *values, stack = row.values()
            assert number == MARKS.index(next(m for m in MARKS if (m[1], m[3]) == (values[0], _DOMAIN[values[3]]))) + 1
            frames = known[stack] if stack is not None else ()
            found.append((*values, tuple(frame[0] for frame in frames)))
        return found


_DOMAIN = {"periodic": 1, "cuda": 2}


@pytest.mark.parametrize("kind", ["report", "sqlite", *KINDS])
def test_every_form_of_a_capture_has_the_samples(kind: str, tmp_path: Path) -> None:
    path = report(tmp_path) if kind == "report" else export(tmp_path)
    if kind in KINDS:
        with contextlib.closing(sqlite3.connect(path)) as db:
            blobs = [data for (data,) in db.execute("SELECT binaryData FROM NVTX_EVENTS ORDER BY rowid")]
            db.execute("UPDATE NVTX_EVENTS SET binaryData = NULL")
            db.commit()
        tables = tables_of(path)
        events = tables["NVTX_EVENTS"]
        at = events.column_names.index("binaryData")
        tables["NVTX_EVENTS"] = events.set_column(at, "binaryData", pa.array(blobs, pa.binary()))
        path = as_folder(tmp_path / "folder", kind, tables, rows=4)
    assert samples(path) == SAMPLES
    with tk.load(path) as trace:
        lines = trace.table("stacks", ["symbol", "module", "line", "original_ip", "unresolved"]).to_pylist()
        assert [tuple(row.values())[:3] for row in lines] == [
            ("<module>", "app.py", 41),
            ("main", "app.py", 20),
            ("wait", "threading.py", 355),
            ("main", "app.py", 21),
        ]
        assert all(row["original_ip"] is None and row["unresolved"] is None for row in lines)
        assert trace.count("nvtx_marks") == 8
        assert trace.table("python_samples", ["kind"]).num_rows == 6


def test_an_export_without_payloads_has_samples_without_stacks(tmp_path: Path) -> None:
    path = export(tmp_path, "UPDATE NVTX_EVENTS SET binaryData = NULL")
    assert samples(path) == [(*row[:-1], ()) for row in SAMPLES]
    with (
        tk.load(path) as trace,
        pytest.raises(tk.TracekitError, match="Hint: read the report, or export it"),
    ):
        trace.export(tmp_path / "out.collapsed", format="collapsed", options={"events": "python_samples"})


@pytest.mark.parametrize("statement", ["DROP TABLE NVTX_PAYLOAD_SCHEMAS", "UPDATE NVTX_PAYLOAD_SCHEMAS SET name = 'x'"])
def test_events_are_not_searched_without_a_schema_of_that_name(
    statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stacks.nvtx, "store_defined_names", lambda *_: pytest.fail("events are read"))
    with tk.load(export(tmp_path, statement)) as trace:
        assert trace.count("python_samples") == trace["python_samples"].num_rows == trace.count("stacks") == 0
    with tk.load(report(tmp_path, [])) as trace:
        assert trace.count("python_samples") == trace["stacks"].num_rows == 0


def test_strings_that_are_missing(tmp_path: Path) -> None:
    path = export(tmp_path, "DELETE FROM StringIds WHERE id = 3")
    with tk.load(path) as trace, pytest.warns(tk.TracekitWarning, match="1 row of stacks refers to strings"):
        assert trace["stacks"]["symbol"].to_pylist() == ["<module>", "main", None, "main"]


frames = st.lists(st.tuples(*[st.integers(0, (1 << 64) - 1)] * 2, st.integers(-(1 << 31), (1 << 31) - 1)), max_size=4)
broken = st.one_of(st.binary(max_size=99).map(lambda b: f"{SCHEMA}:{b.hex()}"), st.sampled_from(["", ":", "7:zz", "x"]))


@given(st.lists(st.one_of(frames, broken), max_size=8), st.integers(0, 2))
def test_decoded_frames(listed: list[list[Frame] | str], skipped: int) -> None:
    texts = [item if isinstance(item, str) else f"{SCHEMA}:{payload(*item).hex()}" for item in listed]
    column = pa.array(["skipped"] * skipped + texts, pa.string())[skipped:]
    edges, columns = stacks.decode_frames(column)
    known = [item if isinstance(item, list) else [] for item in listed]
    assert edges.tolist() == [sum(map(len, known[:n])) for n in range(len(known) + 1)]
    rows = [frame for item in known for frame in item]
    for nth, name in enumerate(("symbol", "module", "line")):
        assert [n % (1 << 64) for n in columns[name].to_pylist()] == [frame[nth] % (1 << 64) for frame in rows]


def test_a_count_that_does_not_fit_the_payload() -> None:
    texts = pa.array([f"1:{payload((1, 2, 3), count=n).hex()}" for n in (0, 1, 2)])
    assert stacks.decode_frames(texts).edges.tolist() == [0, 0, 1, 1]


@pytest.mark.skipif(not PYSTACKS.exists(), reason="no captures beside the checkout")
def test_a_real_capture_and_its_export_with_payloads(tmp_path: Path) -> None:
    path = tmp_path / "export.sqlite"
    with tk.load(PYSTACKS.with_suffix(".nsys-rep")) as trace, tk.load(PYSTACKS) as plain:
        columns = [c for c in trace.schema("python_samples").names if c != "stack_id"]
        assert trace.table("python_samples", columns).equals(plain.table("python_samples", columns))
        marks = trace.table("nvtx_marks", ["mark_id", "payload_text"]).to_pylist()
        with contextlib.closing(sqlite3.connect(path)) as db:
            source = sqlite3.connect(f"{PYSTACKS.as_uri()}?immutable=1", uri=True)
            source.backup(db)
            source.close()
            items = [(m["payload_text"].split(":"), m["mark_id"]) for m in marks]
            rows = [(blob_of((int(schema), bytes.fromhex(data))), number) for (schema, data), number in items]
            db.executemany("UPDATE NVTX_EVENTS SET binaryData = ? WHERE rowid = ?", rows)
            db.commit()
        names = dict(enumerate(trace_strings(path)))
        known, of_samples = paths(trace), trace["python_samples"].to_pylist()
        for sample, mark in zip(of_samples, marks, strict=True):
            data = bytes.fromhex(mark["payload_text"].split(":")[1])
            decoded = [struct.unpack_from("<QQi", data, at) for at in range(16, len(data), 24)]
            listed = [(names[f].replace("&lt;", "<").replace("&gt;", ">"), line) for f, _, line in decoded]
            assert [(frame[0], frame[-1]) for frame in known[sample["stack_id"]]] == listed
        with tk.load(path) as export:
            for table in ("python_samples", "cpu_samples", "api_calls"):
                assert export[table]["stack_id"].equals(trace[table]["stack_id"])
            exact = [c for c in trace.schema("stacks").names if c not in ("kernel_mode", "special_entry")]
            assert export.table("stacks", exact).num_rows == trace.table("stacks", exact).num_rows == 1004


def trace_strings(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return [value for (value,) in db.execute("SELECT value FROM StringIds ORDER BY id")]
