"""Columns that a computation reads, determined by a run on tables with one row."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest
from tracekit.core import reads
from tracekit.core.reads import ReadRecorder, find_read_columns
from tracekit.errors import TracekitError

TABLES = {
    "a": pl.DataFrame({"x": [0], "y": [0], "z": [""]}),
    "b": pl.DataFrame({"x": [0], "w": [False]}),
}
Frames = Callable[[str], pl.LazyFrame]


def test_columns_that_are_collected_are_read() -> None:
    def compute(frames: Frames) -> None:
        frames("b").select("w").collect()
        frames("a").filter(pl.col("z") == "kernel").select("y").collect()

    assert find_read_columns(compute, TABLES.__getitem__) == {"b": ["w"], "a": ["y", "z"]}


def test_both_sides_of_a_join_are_read() -> None:
    def compute(frames: Frames) -> None:
        frames("a").join(frames("b"), on="x").select("y").collect()

    assert find_read_columns(compute, TABLES.__getitem__) == {"a": ["x", "y"], "b": ["x"]}


def test_a_frame_that_is_not_collected_is_not_read() -> None:
    assert find_read_columns(lambda frames: frames("a").select("x"), TABLES.__getitem__) == {}


def test_what_was_read_before_an_error_counts() -> None:
    def compute(frames: Frames) -> None:
        frames("a").select("x").collect()
        raise TracekitError("there is nothing to compute")

    assert find_read_columns(compute, TABLES.__getitem__) == {"a": ["x"]}


def test_a_recorder_answers_as_an_io_source() -> None:
    recorder = ReadRecorder(TABLES.__getitem__)
    assert [f.to_dict(as_series=False) for f in recorder.record_and_read("a", ["x"], None, None)] == [{"x": [0]}]
    assert [f.height for f in recorder.record_and_read("a", ["y"], pl.col("y") > 0, None)] == [0]
    assert [f.shape for f in recorder.record_and_read("b", None, None, 0)] == [(0, 2)]
    assert [f.shape for f in recorder.record_and_read("b", [], None, None)] == [
        (1, 1)
    ]  # only the number of rows is of interest
    assert recorder.columns == {"a": {"x", "y"}, "b": {"x", "w"}}


def test_columns_of_a_computation_with_a_key_are_determined_once_per_tables() -> None:
    runs = []

    def compute(frames: Frames) -> None:
        runs.append(frames("a").select("x").collect())

    key = test_columns_of_a_computation_with_a_key_are_determined_once_per_tables
    assert [find_read_columns(compute, TABLES.__getitem__, cache_key=key) for _ in range(3)] == [{"a": ["x"]}] * 3
    assert len(runs) == 1
    others = {**TABLES, "a": TABLES["a"].clone()}
    assert find_read_columns(compute, others.__getitem__, cache_key=key) == {"a": ["x"]}
    assert len(runs) == 2


def test_a_limited_number_of_computations_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[object, object] = {}
    monkeypatch.setattr(reads, "_known", known)
    monkeypatch.setattr(reads, "_MAX_KNOWN", 2)
    for key in "abc":
        find_read_columns(lambda frames: frames("a").select("x").collect(), TABLES.__getitem__, cache_key=key)
    assert [*known] == ["c"]
