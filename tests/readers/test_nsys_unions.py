"""Declared tables that are the union of several source tables."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.nsys_rep import Parts, event, message, strings
from tests.builders.nsys_sqlite import FIXTURES, edited
from tests.helpers import count_undecoded
from tracekit import schemas
from tracekit.errors import CorruptTraceError
from tracekit.readers.nsys.capture import find_source_column_types
from tracekit.readers.nsys.mapping import LABEL, SOURCES

OMP = FIXTURES / "omp.sqlite"
UNIONS = [name for name, sources in SOURCES.items() if sources.is_union]
EVENTS = SOURCES["openmp_events"]
PREFIX = "OPENMP_EVENT_KIND_"
SWITCHES = f"CREATE TABLE {PREFIX}TASK_SCHEDULE (start, end, eventClass, globalTid, correlationId, nameId, eventKind, \
parallelId, priorTaskId, priorTaskStatus, nextTaskId)"
THREADS = (
    f"CREATE TABLE {PREFIX}THREAD (start, end, eventClass, globalTid, correlationId, nameId, eventKind, threadId, \
threadType)"
)


UNRECORDED = {"kernels": {"blocks_per_sm", "warps_per_sm", "achieved_occupancy_percent"}}
"""Columns of tables of nsys that only other profilers record."""


@pytest.mark.parametrize("name", SOURCES)
def test_every_declared_column_has_a_source(name: str) -> None:
    declared = [c for c in schemas.table(name).names if c not in UNRECORDED.get(name, ())]
    assert list(SOURCES[name].columns) == declared


@pytest.mark.parametrize("name", UNIONS)
def test_declarations_of_unions(name: str) -> None:
    schema, sources = schemas.table(name), SOURCES[name]
    assert sources.columns[schema.names[0]] == "rowid"
    assert sources.list_tables() == set(sources.labels)
    labels = [schema[c].values for c, source in sources.columns.items() if source == LABEL]
    assert labels == [tuple(dict.fromkeys(sources.labels.values()))]


def test_source_columns() -> None:
    create = f"{PREFIX}TASK_CREATE"
    assert EVENTS.find_column(create, "start_ns") == "start"
    assert EVENTS.find_column(create, "kind") == "*"
    assert EVENTS.find_column(create, "new_task_id") == "newTaskId"
    assert EVENTS.find_column(f"{PREFIX}TASK", "new_task_id") is None
    assert list(find_source_column_types("openmp_events", f"{PREFIX}TASK", ["kind", "new_task_id"])) == ["rowid"]


@pytest.mark.parametrize("suffix", [".sqlite", ".nsys-rep"])
@pytest.mark.parametrize("columns", [["kind"], ["openmp_event_id"], ["new_task_id", "kind"], ["count", "start_ns"]])
def test_columns_are_read_alone(suffix: str, columns: list[str]) -> None:
    with tk.load(OMP.with_suffix(suffix)) as trace:
        whole = trace.table("openmp_events")
    with tk.load(OMP.with_suffix(suffix)) as trace:
        assert trace.table("openmp_events", columns).equals(whole.select(columns))
        assert trace.count("openmp_events") == whole.num_rows == 846


def test_rows_run_over_the_sources_in_order() -> None:
    with tk.load(OMP) as trace:
        rows = trace.frame("openmp_events").select("openmp_event_id", pl.col("kind").cast(pl.String)).collect()
    assert rows["openmp_event_id"].to_list() == list(range(1, 847))
    kinds = rows["kind"].rle().struct.field("value").to_list()
    assert kinds == [k for k in EVENTS.labels.values() if k in kinds]
    assert len(kinds) == 9


def test_a_source_lacks_columns(tmp_path: Path) -> None:
    rows = [f"INSERT INTO {PREFIX}TASK_SCHEDULE VALUES (1, 2, 78, 281485378584576, 0, 153, 16, 5, 6, 7, 8)"]
    rows += [f"INSERT INTO {PREFIX}THREAD VALUES (1, 2, 78, 281485378584576, 0, 4294967295, 27, 9, 2)"]
    with tk.load(edited(tmp_path, SWITCHES, THREADS, *rows, of="omp")) as trace:
        events = trace.frame("openmp_events").with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()
    thread, switch = events.filter(pl.col("kind").is_in(["thread", "task_schedule"])).to_dicts()
    assert (thread["openmp_event_id"], thread["openmp_thread_id"], thread["thread_type"]) == (1, 9, "Worker")
    assert (thread["name"], thread["event_kind"], thread["parallel_id"]) == (None, "Thread", None)
    assert (switch["parallel_id"], switch["prior_task_id"], switch["next_task_id"]) == (5, 6, 8)
    assert (switch["prior_task_status"], switch["name"]) == ("Switched Out", "Implicit Task")
    assert events["prior_task_id"].null_count() == events.height - 1


@pytest.mark.parametrize("value", ["NULL", "'text'"])
def test_damage_is_reported_with_its_source(value: str, tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_schema SET sql = replace(sql, 'NOT NULL', '') WHERE name = '{PREFIX}DISPATCH'",
        of="omp",
    )
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {PREFIX}DISPATCH SET start = {value} WHERE rowid = 7")
        connection.commit()
    with tk.load(path) as trace, pytest.raises(CorruptTraceError) as caught:
        trace.table("openmp_events")
    assert (caught.value.table, caught.value.row) == (f"{PREFIX}DISPATCH", 7)


def call(kind: int, *rest: tuple[int, bytes], event_class: int = 78) -> bytes:
    fields = (1, 10), (2, 20), (6, event_class), (7, 0), (13, 7 << 24 | 7), (34, message((1, kind), *rest))
    return event(48, 108, *fields)


KINDS = {"THREAD": (2, 9, 2), "MASTER": (7, 3, 4), "LOCK_INIT": (15, 1, 5), "CANCEL": (11, 6), "FLUSH": (19, 8)}
"""Fields of messages that no capture has: the message, and the values inside it."""


def test_messages_decide_the_table(tmp_path: Path) -> None:
    made = [call(0, (number, message(*enumerate(values, 1)))) for number, *values in KINDS.values()]
    unknown = call(40, (99, b"")) + call(41)
    runtime = event(48, 108, (1, 1), (2, 2), (6, 0), (7, 0), (13, 7))
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(Parts([runtime + b"".join(made) + unknown + runtime], [strings("name")]).pack())
    with tk.load(path) as trace:
        columns = ["kind", "openmp_thread_id", "parallel_id", "task_id", "detail_id", "wait_id"]
        events = trace.table("openmp_events", columns)
        assert trace.count("api_calls") == 2
        assert count_undecoded(trace.undecoded) == {"OpenMP": 2}
    assert events.to_pylist() == [
        dict(zip(columns, row, strict=True))
        for row in [
            ("thread", 9, None, None, None, None),
            ("master", None, 3, 4, None, None),
            ("cancel", None, None, 6, None, None),
            ("flush", 8, None, None, None, None),
            ("lock_init", None, None, None, 1, 5),
        ]
    ]


def test_a_message_that_is_a_number_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "made.nsys-rep"
    path.write_bytes(Parts([event(48, 108, (6, 78), (34, 5))], [strings("name")]).pack())
    with tk.load(path) as trace, pytest.raises(CorruptTraceError, match="a number instead of bytes"):
        trace.table("openmp_events")
