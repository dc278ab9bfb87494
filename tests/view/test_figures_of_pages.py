"""Figures on pages equal plain SQL on the exports that they show."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import NamedTuple

import pytest
from tests.view.markup import TableMarkup
from tests.view.support import FIXTURES, get, running

_DURATIONS = "count(*), sum({0}end - {0}start), min({0}end - {0}start), max({0}end - {0}start)"
_STATISTICS = _DURATIONS.format("e.")
_BASE_NAME = "iif(s.value GLOB '*_v[0-9][0-9][0-9][0-9]', substr(s.value, 1, length(s.value) - 6), s.value)"
_WORK = " UNION ALL ".join(
    f"SELECT '{kind}' AS kind, start, end, correlationId, globalPid, streamId FROM CUPTI_ACTIVITY_KIND_{table}"
    for kind, table in (("kernel", "KERNEL"), ("copy", "MEMCPY"), ("copy", "MEMSET"))
)
_LAUNCHES = f"""
    SELECT w.*, min(r.start, w.start) AS launch FROM ({_WORK}) AS w
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r ON r.correlationId = w.correlationId
"""
_BUSY = f"""
    SELECT *, max(0, end - max(start, coalesce(max(end) OVER (
      PARTITION BY kind ORDER BY start, end ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), start))) AS ns
    FROM ({_LAUNCHES})
"""
_BATCHES = """
    SELECT CAST(substr(text, 7) AS INTEGER) AS number, start, coalesce(lead(start) OVER (ORDER BY start), end) AS stop
    FROM NVTX_EVENTS WHERE text LIKE 'Batch %'
"""
KERNELS = f"""
    SELECT s.value, '(' || gridX || ', ' || gridY || ', ' || gridZ || ')',
           '(' || blockX || ', ' || blockY || ', ' || blockZ || ')', {_STATISTICS}
    FROM CUPTI_ACTIVITY_KIND_KERNEL AS e JOIN StringIds AS s ON s.id = demangledName
    GROUP BY 1, 2, 3 ORDER BY 5 DESC LIMIT 5
"""
CALLS = f"""
    SELECT {_BASE_NAME}, {_STATISTICS} FROM CUPTI_ACTIVITY_KIND_RUNTIME AS e
    JOIN StringIds AS s ON s.id = nameId GROUP BY nameId ORDER BY 3 DESC LIMIT 5
"""
COPIES = f"""
    SELECT '[CUDA memcpy ' || k.label || ']', {_STATISTICS} FROM CUPTI_ACTIVITY_KIND_MEMCPY AS e
    JOIN ENUM_CUDA_MEMCPY_OPER AS k ON k.id = copyKind GROUP BY 1
"""
RANGES = f"""
    SELECT ':' || coalesce(text, s.value), {_STATISTICS} FROM NVTX_EVENTS AS e
    LEFT JOIN StringIds AS s ON s.id = textId WHERE eventType = 59 AND end IS NOT NULL
    GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT 4
"""
MPI = " UNION ALL ".join(
    f"""SELECT s.value, {_STATISTICS} FROM MPI_{table}_EVENTS AS e JOIN StringIds AS s ON s.id = textId
    WHERE end IS NOT NULL GROUP BY 1"""
    for table in ("COLLECTIVES", "P2P")
)
NCCL = f"""
    SELECT s.value, {_STATISTICS} FROM CUPTI_ACTIVITY_KIND_KERNEL AS e
    JOIN StringIds AS s ON s.id = demangledName WHERE s.value LIKE '%nccl%' GROUP BY 1
"""
WARNINGS = """
    SELECT text, count(*) FROM DIAGNOSTIC_EVENT AS e JOIN ENUM_DIAGNOSTIC_SEVERITY_LEVEL AS l ON l.id = severity
    WHERE l.label IN ('Warning', 'Error') GROUP BY 1
"""
PEAKS = """
    SELECT k.label, max(used) FROM (
      SELECT memKind, sum(CASE o.label WHEN 'Allocation' THEN bytes ELSE -bytes END)
             OVER (PARTITION BY memKind ORDER BY start, e.rowid) AS used
      FROM CUDA_GPU_MEMORY_USAGE_EVENTS AS e JOIN ENUM_CUDA_DEV_MEM_EVENT_OPER AS o ON o.id = memoryOperationType
    ) JOIN ENUM_CUDA_MEM_KIND AS k ON k.id = memKind GROUP BY 1
"""
QUEUES = f"""
    WITH changes AS (
      SELECT streamId, time, sum(change) AS change FROM (
        SELECT streamId, launch AS time, 1 AS change FROM ({_LAUNCHES})
        UNION ALL SELECT streamId, start, -1 FROM ({_LAUNCHES})
      ) GROUP BY streamId, time
    ), lengths AS (
      SELECT streamId, time, sum(change) OVER (PARTITION BY streamId ORDER BY time) AS length,
             lead(time) OVER (PARTITION BY streamId ORDER BY time) - time AS ns FROM changes
    )
    SELECT streamId, max(time) - min(time), max(length), sum(length * ns), sum(CASE length WHEN 0 THEN ns ELSE 0 END)
    FROM lengths GROUP BY streamId
"""
ITERATIONS = f"""
    SELECT number, b.start, sum(w.kind = 'kernel') FROM ({_BATCHES}) AS b
    JOIN ({_LAUNCHES}) AS w ON w.launch >= b.start AND w.launch < b.stop GROUP BY 1
"""
STEPS = f"""
    WITH bounds AS (
      SELECT number, max(start, coalesce((SELECT max(w.end) FROM ({_LAUNCHES}) AS w WHERE launch < b.start), 0)) AS time
      FROM ({_BATCHES}) AS b
    ), steps AS (SELECT number, time, lead(time) OVER (ORDER BY number) - time AS ns FROM bounds)
    SELECT steps.number, steps.ns, sum((w.kind = 'kernel') * w.ns), sum((w.kind = 'copy') * w.ns)
    FROM steps JOIN ({_BATCHES}) AS b ON b.number = steps.number
    JOIN ({_BUSY}) AS w ON w.launch >= b.start AND w.launch < b.stop WHERE steps.ns IS NOT NULL GROUP BY 1
"""
GPUS = f"""
    SELECT id, totalMemory, smCount,
           (id = 0) * (SELECT sum(w.ns) FROM ({_BUSY}) AS w
                       WHERE w.kind = 'kernel' AND launch >= (SELECT start FROM ({_BATCHES}) WHERE number = 1))
    FROM TARGET_INFO_GPU
"""


class Case(NamedTuple):
    """Figures of a table.

    Attributes:
        capture: Number of the capture.
        page: Page and table.
        keys: Columns that identify a row.
        values: Columns with the figures.
        sql: Query that returns the same columns.
    """

    capture: int
    page: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    sql: str


CAPTURES = ("train_amp.sqlite", "ddp2.sqlite", "um.sqlite", "mpi_rank0.sqlite")
_REPORT = ("total_time_ns", "min_ns", "max_ns")
_OF_KERNELS = ("name", "grid", "block"), ("launches", "total_time_ns", "minimum_ns", "maximum_ns"), KERNELS
CASES = [
    *(Case(n, "kernels/kernels", *_OF_KERNELS) for n in range(4)),
    *(Case(n, "api/api", ("name",), ("num_calls", *_REPORT), CALLS) for n in range(4)),
    *(Case(n, "memory/copies", ("operation",), ("count", *_REPORT), COPIES) for n in range(2)),
    *(Case(n, "nvtx/nvtx", ("range",), ("instances", *_REPORT), RANGES) for n in (0, 2, 3)),
    *(Case(n, "findings/findings", ("message",), ("count",), WARNINGS) for n in range(3)),
    Case(1, "communication/collectives", ("name",), ("instances", *_REPORT), NCCL),
    Case(3, "communication/mpi", ("name",), ("instances", *_REPORT), MPI),
    Case(2, "memory/memory_owners", ("kind",), ("peak_bytes",), PEAKS),
    Case(0, "queues/queues", ("strm",), ("span_ns", "max", "waiting_ns", "empty_ns"), QUEUES),
    Case(0, "iterations/iterations", ("iteration",), ("start_ns", "kernel_count"), ITERATIONS),
    Case(0, "iterations/step_parts", ("step",), ("duration_ns", "compute_ns", "copies_ns"), STEPS),
    Case(0, "gpus/gpus", ("device_id",), ("memory_bytes", "sm_count", "kernel_time_ns"), GPUS),
]


def test_figures_of_pages_are_those_of_plain_sql() -> None:
    count = 0
    with running(*(FIXTURES / name for name in CAPTURES)) as viewer:
        for case in CASES:
            page, _, table = case.page.partition("/")
            columns = ",".join((*case.keys, *case.values))
            url = f"/fragment/table/{table}?page={page}&capture={case.capture}&{table}.columns={columns}"
            found = {}
            for row in TableMarkup(get(viewer, url).text).rows():
                found[tuple(row[c] for c in case.keys)] = [float(row[c]) for c in case.values]
            path = FIXTURES / CAPTURES[case.capture]
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                expected = database.execute(case.sql).fetchall()
            assert expected, case
            for row in expected:
                key = tuple(str(value) for value in row[: len(case.keys)])
                assert key in found, (key, sorted(found)[:20])
                assert found[key] == list(row[len(case.keys) :]), (case.page, key)
                count += len(case.values)
    assert count >= 60


@pytest.mark.parametrize("name", CAPTURES)
def test_numbers_of_rows_are_those_of_plain_sql(name: str) -> None:
    tables = {"kernels": "CUPTI_ACTIVITY_KIND_KERNEL", "api_calls": "CUPTI_ACTIVITY_KIND_RUNTIME"}
    path = FIXTURES / name
    with running(path) as viewer, contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        for table, source in {**tables, "diagnostics": "DIAGNOSTIC_EVENT"}.items():
            (count,) = database.execute(f"SELECT count(*) FROM {source}").fetchone()
            shown = TableMarkup(get(viewer, f"/fragment/table/table:{table}?page=tables").text)
            assert shown.status().rpartition(" of ")[2].removesuffix(" rows") == f"{count:,}"
