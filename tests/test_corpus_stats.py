"""Reports against what NVIDIA's own ``nsys stats`` printed of public captures, every number of it.

Texts and captures are named by the beginning of their SHA-256: what is in them is private, and nothing is printed.
"""

from __future__ import annotations

import functools
import hashlib
import io
import lzma
import re
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.builders.reports import REPORTS_OF_NSYS, compute_report
from tests.nsys_texts import Table, number, same_text, tables
from tracekit import schemas
from tracekit.core.reports import Frames

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
EXPORTS = sorted(CORPUS.glob("nsys_*/**/*.sqlite")) if CORPUS.is_dir() else []
FILES = sorted(p for p in CORPUS.glob("nsys_stats/**/*") if p.is_file()) if CORPUS.is_dir() else []
pytestmark = [pytest.mark.corpus, pytest.mark.skipif(not FILES, reason="no corpus beside the checkout")]

# Text: its capture, and how many rows of which report it prints.
WITH_CAPTURE = {
    "04fa93615796f0e5": ("689a2441680f58ab", {"osrt_sum": 26}),
    "efab99ece0915207": (
        "ad200e1065524cd7",
        {
            "nvtx_sum": 77,
            "cuda_api_sum": 25,
            "cuda_gpu_kern_sum": 15,
            "cuda_gpu_mem_time_sum": 2,
            "cuda_gpu_mem_size_sum": 2,
        },
    ),
}
# Start and end of every call, and of every GPU activity, each on a line of its own.
CALLS, ACTIVITIES, THEIR_CAPTURE = "5b5ffd0b7da6b635", "4320526abca8f79c", "91cedad6e198bfe2"
# nvtx_pushpop_trace as CSV: its rows hold all that the report is made of.
PUSHPOP_TRACES = {"65323370ba8ad1da": 27891, "87a54e0531035a26": 27885, "b79e554be437020a": 31550}
# nvtx_gpu_proj_trace of the same captures, as a table: where its ranges lie in that nesting.
PROJECTIONS = {"b8a706cd51cc9653": "65323370ba8ad1da", "96a3461b47da6f4e": "b79e554be437020a"}
# Texts of 2020 and 2021 with the trace and its sums: the sums are made anew. Number of such texts in one file.
OLD_TEXTS = {
    "1a353646b133f974": 1,
    "974745935ac0f202": 1,
    "7f1c3d047b7fd8cb": 1,
    "4280acd1186df58f": 6,
    "550a39bb8b9fd7b3": 6,
}
# Printed tables whose capture is not here.
WITHOUT_CAPTURE = {
    "0c88d912abb88a17": 5,
    "18832b22d4357b3c": 1,
    "d766c03d48480e35": 1,
    "a7a8cde55d01e5c9": 6,
    "56bf5a742df186b3": 6,
    "5b2a2af81aebb9ec": 6,
}
# Projections, threads and devices of captures that are not here, made by another tool on top of nsys stats.
NOT_OF_NSYS = {
    *("8def2785f706706e", "17f75f1b4b04fb93", "d459357d805e27ad", "4b6d12edeef0c2e3", "eb79798306362eb3"),
    *("d8cde84eb836b0c3", "538d930eec23de9d", "e28530f8f593dd5a", "4fd48023094a5c13", "6c37843f52172b01"),
    *("7df9d66724d5c7eb",),
}


@functools.cache
def by_digest() -> dict[str, Path]:
    """Captures and texts by the beginning of their digest."""
    return {hashlib.sha256(p.read_bytes()).hexdigest()[:16]: p for p in (*EXPORTS, *FILES)}


def printed_tables(digest: str) -> list[Table]:
    return list(tables(by_digest()[digest].read_text("utf-8", errors="replace")))


def agree(table: Table, report: pl.DataFrame) -> bool:
    """Whether every cell of a printed table is that of a report."""
    if report.columns != list(table.titles) or report.height != len(table.rows):
        return False
    for title in table.titles:
        printed, made = table.column(title), report[title]
        if made.dtype.is_numeric():
            if [number(cell) for cell in printed] != made.to_list():
                return False
        elif not all(same_text(*texts) for texts in zip(printed, made.cast(pl.String).fill_null(""), strict=True)):
            return False
    return True


def test_every_text_is_accounted_for() -> None:
    known = [
        *WITH_CAPTURE,
        CALLS,
        ACTIVITIES,
        *PUSHPOP_TRACES,
        *PROJECTIONS,
        *OLD_TEXTS,
        *WITHOUT_CAPTURE,
        *NOT_OF_NSYS,
    ]
    assert len(known) == len(set(known))
    assert {hashlib.sha256(p.read_bytes()).hexdigest()[:16] for p in FILES} == set(known)


@pytest.mark.parametrize("digest", WITH_CAPTURE)
def test_every_printed_number_is_ours(digest: str) -> None:
    capture, rows = WITH_CAPTURE[digest]
    found: dict[str, int] = {}
    with tk.load(by_digest()[capture]) as trace:
        made = {name: compute_report(trace.frame, name).frame() for name in REPORTS_OF_NSYS}
    for table in printed_tables(digest):
        fitting = [name for name, report in made.items() if agree(table, report)]
        assert len(fitting) == 1, (table.titles[:3], len(table.rows), len(fitting))
        found[fitting[0]] = len(table.rows)
    assert found == rows
    skipped = re.findall(r"/(\w+)\.py\]\.\.\. *\nSKIPPED: ", by_digest()[digest].read_text("utf-8"))
    assert sum(made[name].height for name in skipped if name in made) == 0


def events_of(digest: str) -> pl.DataFrame:
    """Read the events of lines that say where each begins, and when it ends."""
    lines = pl.read_csv(by_digest()[digest], infer_schema_length=None)
    return lines.filter(pl.col("Event Type") == "Enter").rename(
        {"Timestamp (ns)": "start_ns", "_matching_timestamp": "end_ns"}
    )


def test_calls_are_those_that_were_listed() -> None:
    listed = events_of(CALLS).select("Name", "Process", "Thread", "start_ns", pl.col("end_ns").cast(pl.Int64))
    with tk.load(by_digest()[THEIR_CAPTURE]) as trace:
        columns = [pl.col("name").cast(pl.String), "process_id", "thread_id", "start_ns", "end_ns"]
        calls = trace.frame("api_calls").select(columns).collect()
    assert listed.height == calls.height == 3048
    assert (Counter(listed.rows()) - Counter(calls.rows())).total() == 0


def test_activities_are_those_that_were_listed() -> None:
    listed = events_of(ACTIVITIES).select("streamId", "bytes", "start_ns", pl.col("end_ns").cast(pl.Int64))
    with tk.load(by_digest()[THEIR_CAPTURE]) as trace:
        tables = [trace.frame(name) for name in ("kernels", "memcpys", "memsets")]
        sized = [t if "bytes" in t.collect_schema() else t.with_columns(bytes=pl.lit(None, pl.Int64)) for t in tables]
        parts = [t.select("stream_id", pl.col("bytes").cast(pl.Int64), "start_ns", "end_ns") for t in sized]
        activities = pl.concat(parts).collect()
    assert listed.height == activities.height == 1591
    theirs = listed.with_columns(pl.all().cast(pl.Int64))
    assert (Counter(theirs.rows()) - Counter(activities.cast(pl.Int64).rows())).total() == 0


def ranges_of(digest: str) -> tuple[bytes, pl.DataFrame]:
    """Read a printed nvtx_pushpop_trace: its text, and the ranges that it was made of, in the order of their rows."""
    text = lzma.decompress(by_digest()[digest].read_bytes())
    row = r'(?m)^(\d+),(\d+),\d+,\d+,-?\d+,("?)(.*)\3,(\d+),(\d+),\d+,\d+,(\d+),\d*,:[\d:]*,.*$'
    found = [(int(m[1]), int(m[2]), m[4], int(m[5]), int(m[6]), int(m[7])) for m in re.finditer(row, text.decode())]
    columns = ["start_ns", "end_ns", "tag", "process_id", "thread_id", "range_id"]
    tag = pl.col("tag").str.splitn(":", 2).struct
    named = {"domain": tag.field("field_0"), "name": tag.field("field_1"), "kind": pl.lit("push_pop")}
    return text, pl.DataFrame(found, schema=columns, orient="row").with_columns(**named).sort("range_id")


def frames(**rows: pl.DataFrame) -> Frames:
    """Give declared tables with these rows; columns that they lack are null."""

    def frame(name: str) -> pl.LazyFrame:
        declared = schemas.polars_schema(schemas.table(name))
        have = rows.get(name, pl.DataFrame())
        columns = {c: pl.col(c).cast(t) if c in have.columns else pl.lit(None, t) for c, t in declared.items()}
        return have.lazy().select(**columns) if have.width else pl.LazyFrame(schema=declared)

    return frame


@pytest.mark.parametrize("digest", PUSHPOP_TRACES)
def test_nesting_of_ranges_is_printed_to_the_byte(digest: str) -> None:
    text, ranges = ranges_of(digest)
    report, sink = compute_report(frames(nvtx_ranges=ranges), "nvtx_pushpop_trace"), io.BytesIO()
    report.csv(sink)
    assert report.rows == ranges.height == PUSHPOP_TRACES[digest]
    assert hashlib.sha256(sink.getvalue()).digest() == hashlib.sha256(text).digest()


@pytest.mark.parametrize("digest", PROJECTIONS)
def test_projected_ranges_lie_where_nsys_puts_them(digest: str) -> None:
    columns = ["Start (ns)", "Duration (ns)", "PID", "TID", "Lvl", "ParentId", "RangeStack", "RangeId"]
    made = (
        compute_report(frames(nvtx_ranges=ranges_of(PROJECTIONS[digest])[1]), "nvtx_pushpop_trace")
        .frame()
        .select(columns)
    )
    theirs = pl.read_parquet(by_digest()[digest]).drop_nulls("RangeId")  # null: work in no range
    titles = ["Orig Start", "Orig Duration", *columns[2:]]
    theirs = theirs.select(pl.col(t).cast(made[c].dtype).alias(c) for t, c in zip(titles, columns, strict=True))
    ours = made.join(theirs.select("RangeId"), on="RangeId", how="semi").sort("RangeId")
    assert theirs.height > 1000
    same = ours.equals(theirs.sort("RangeId"), null_equal=True)
    assert same


def sums_of(trace: Table) -> dict[str, tuple[float, ...]]:
    """Make the sums over an old printed trace: by name, the values that were printed then, in whole numbers."""
    lengths = [int(number(cell, comma=True)) for cell in trace.column("Duration(nsec)")]
    rows = pl.DataFrame({"name": trace.column("Name"), "end_ns": lengths}).with_columns(start_ns=pl.lit(0))
    rows = rows.with_columns(copy_kind=pl.col("name").str.extract(r"^\[CUDA memcpy (\w+)\]$"))
    tables = frames(
        kernels=rows.filter(~pl.col("name").str.starts_with("[CUDA ")),
        memcpys=rows.filter(pl.col("copy_kind").is_not_null()),
        memsets=rows.filter(pl.col("name") == "[CUDA memset]"),
    )
    made = [compute_report(tables, name).frame() for name in ("cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum")]
    whole = [pl.col("Time (%)").floor(), pl.nth(1, 2), pl.col("Avg (ns)").floor(), pl.col("Min (ns)", "Max (ns)")]
    return {name: row for m in made for name, row in zip(m[m.columns[-1]], m.select(whole).iter_rows(), strict=True)}


@pytest.mark.parametrize("digest", OLD_TEXTS)
def test_sums_of_old_texts_are_those_of_their_traces(digest: str) -> None:
    printed = printed_tables(digest)
    traces = [i for i, table in enumerate(printed) if table.titles[0] == "Start(sec)"]
    assert len(traces) == OLD_TEXTS[digest]
    for at in traces:
        made = sums_of(printed[at])
        rows = [*printed[at - 3].rows, *printed[at - 2].rows]
        differing = [n for *cells, n in rows if made[n] != tuple(number(cell, comma=True) for cell in cells)]
        assert (len(differing), len(rows)) == (0, len(made))


@functools.cache
def made_of_every_capture() -> list[dict[str, set[tuple[int, int]]]]:
    """Total and count of each row of each capture's sums."""
    sums = ("nvtx_sum", "osrt_sum", "cuda_api_sum", "cuda_gpu_kern_sum", "cuda_gpu_mem_time_sum")
    found = []
    for path in EXPORTS:
        with tk.load(path) as trace:
            found.append(
                {name: set(compute_report(trace.frame, name).frame().select(pl.nth(1, 2)).iter_rows()) for name in sums}
            )
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("digest", WITHOUT_CAPTURE)
def test_no_capture_here_has_the_other_numbers(digest: str) -> None:
    printed = [t for t in printed_tables(digest) if t.rows]
    assert len(printed) == WITHOUT_CAPTURE[digest]
    for table in (t for t in printed if t.titles[0] == "Time (%)"):
        rows = {(number(row[1]), number(row[2])) for row in table.rows}
        assert not [name for sums in made_of_every_capture() for name, have in sums.items() if rows <= have]
