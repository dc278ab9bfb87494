"""What the exporter ``chrome-trace`` writes, the reader ``kineto`` gives back: all that is held, to the nanosecond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import tracekit as tk
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import strategies
from tests.builders.kineto import SAME_UNDER_NSYS, TRACE
from tests.conftest import examples
from tracekit import schemas

FIXTURES = TRACE.parents[1]
CAPTURES = [*sorted(FIXTURES.glob("*.sqlite")), *sorted(FIXTURES.glob("*.nsys-rep")), SAME_UNDER_NSYS, TRACE]
DRAWN = [path for path in CAPTURES if path.stem != "empty"]
NOT_WRITTEN = {
    "kernels": {
        "green_context_id",
        "mangled_name",
        "launch_type",
        "shared_memory_executed_bytes",
        "local_memory_per_thread_bytes",
        "local_memory_total_bytes",
        "grid_id",
        "graph_id",
        "cluster_x",
        "cluster_y",
        "cluster_z",
    },
    "memcpys": {
        "green_context_id",
        "src_device_id",
        "src_context_id",
        "dst_device_id",
        "dst_context_id",
        "virtual_address",
        "copy_count",
    },
    "memsets": {"green_context_id"},
    "graph_launches": {"green_context_id"},
    "syncs": {"green_context_id"},
    "cuda_events": {"green_context_id"},
    "api_calls": {"name_id", "callchain_id"},
    "nvtx_ranges": set(),
    "nvtx_marks": set(),
}
"""Columns that a Chrome trace does not hold."""


def held(trace: tk.Trace, name: str) -> pl.DataFrame:
    """The rows of a table as far as a Chrome trace holds them: names of calls have no suffix, colors are opaque."""
    rows = pl.DataFrame(trace.table(name)).drop(NOT_WRITTEN[name])
    rows = rows.with_columns(pl.col(pl.Categorical).cast(pl.String))
    if name == "cuda_events":
        rows = rows.drop_nulls("timestamp_ns")
    if name == "api_calls":
        rows = rows.with_columns(pl.col("name").str.replace(r"_v\d{4}$", ""))
    if "color" in rows.columns:
        rows = rows.with_columns(pl.col("color") & 0xFFFFFF)
    return rows


@pytest.mark.many(1)
@pytest.mark.parametrize("capture", DRAWN, ids=lambda p: p.name)
def test_a_capture_comes_back(capture: Path, tmp_path: Path) -> None:
    with tk.load(capture) as trace, tk.load(trace.export(tmp_path / "trace.json.gz")) as again:
        assert again.format == "kineto"
        for table in NOT_WRITTEN:
            expected, found = held(trace, table), held(again, table)
            assert found.height == expected.height, table
            for column in expected.columns:
                assert found[column].to_list() == expected[column].to_list(), (table, column)


def test_attribution_comes_back(tmp_path: Path) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace, tk.load(trace.export(tmp_path / "trace.json")) as again:
        columns = ["kernel_id", "api_call_id", "range_id", "range_path", "range_depth", "start_end_range_id"]
        one, other = (t.correlate().frame("kernels").select(columns).collect() for t in (trace, again))
        assert other.with_columns(pl.col("range_path").cast(pl.String)).equals(
            one.with_columns(pl.col("range_path").cast(pl.String))
        )
        assert again.info["origin_utc_ns"] == trace.info["origin_utc_ns"]


TIMES = st.integers(-(10**15), 10**15)


@st.composite
def ranges(draw: st.DrawFn) -> pa.Table:
    """Ranges that lie anywhere, end before they start, or are open; payloads of every type."""
    table = draw(strategies.tables(schemas.table("nvtx_ranges")))
    n = table.num_rows
    starts = draw(st.lists(TIMES, min_size=n, max_size=n))
    lengths = draw(st.lists(st.none() | st.integers(-(10**6), 10**15), min_size=n, max_size=n))
    rows: list[dict[str, Any]] = table.to_pylist()
    for i, (row, start, length) in enumerate(zip(rows, starts, lengths, strict=True)):
        number, real, text = PAYLOADS.get(row["payload_type"], (False, False, False))
        row |= {
            "range_id": i + 1,
            "start_ns": start,
            "end_ns": None if length is None else start + length,
            "process_id": draw(st.integers(1, 3)),
            "thread_id": draw(st.integers(1, 3)),
            "end_thread_id": draw(st.none() | st.integers(1, 3)) if row["kind"] == "start_end" else None,
            "domain_id": draw(st.integers(0, 3)),
            "name": row["name"] or "x",
            "color": draw(st.none() | st.integers(0, 0xFFFFFFFF)),
            "payload_int": draw(INTEGERS[row["payload_type"]]) if number else None,
            "payload_float": draw(st.floats(allow_nan=False)) if real else None,
            "payload_text": draw(strategies.TEXT) if text else None,
        }
    return pa.Table.from_pylist(rows, schema=schemas.arrow_schema(schemas.table("nvtx_ranges")))


PAYLOADS = {
    **dict.fromkeys(("uint64", "int64", "uint32", "int32"), (True, False, False)),
    **dict.fromkeys(("double", "float"), (False, True, False)),
    **dict.fromkeys(("json", "binary"), (False, False, True)),
}
INTEGERS = {
    "uint64": st.integers(-(1 << 63), (1 << 63) - 1),
    "int64": st.integers(-(1 << 63), (1 << 63) - 1),
    "uint32": st.integers(0, (1 << 32) - 1),
    "int32": st.integers(-(1 << 31), (1 << 31) - 1),
}


@pytest.mark.filterwarnings("ignore:.* (end before they start|ends before it starts)")
@settings(max_examples=examples(40))
@given(ranges())
def test_any_ranges_come_back(tmp_path_factory: pytest.TempPathFactory, table: pa.Table) -> None:
    trace = tk.Trace.from_tables({"nvtx_ranges": table})
    path = trace.export(tmp_path_factory.mktemp("ranges") / "trace.json")
    if not table.num_rows:
        return
    with tk.load(path) as again:
        expected, found = held(trace, "nvtx_ranges"), held(again, "nvtx_ranges")
        for column in expected.columns:
            assert found[column].to_list() == expected[column].to_list(), column
