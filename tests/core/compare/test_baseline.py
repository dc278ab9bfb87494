"""Baselines: a round trip, and values that are not those of a baseline."""

from __future__ import annotations

import copy
import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import examples
from tests.core.compare import made
from tests.core.compare.test_diff import SAMPLE, summary_of
from tracekit.comparison import Summarizer
from tracekit.core import compare
from tracekit.core.compare import Summary, baseline
from tracekit.errors import CorruptTraceError, TracekitError, UnsupportedVersionError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
VALID = baseline.to_json(summary_of([("a", 0, 1, 5), ("b", None, 2, 7)]))


def test_a_baseline_is_the_same_summary() -> None:
    summary = Summarizer(tuple(compare.KINDS)).summarize(made.run(1))
    again = baseline.from_json(json.loads(json.dumps(baseline.to_json(summary))))
    assert again.samples.equals(summary.samples)
    assert again.samples.schema == summary.samples.schema
    assert (again.units, again.facts) == (summary.units, summary.facts)
    assert len(json.dumps(baseline.to_json(summary))) < 100_000


@settings(max_examples=examples(100))
@given(st.lists(SAMPLE, max_size=8))
def test_round_trip(samples: list[Any]) -> None:
    summary = summary_of(samples)
    again = baseline.from_json(json.loads(json.dumps(baseline.to_json(summary))))
    assert again.samples.equals(summary.samples)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "x", "the file is not a tracekit baseline"),
        ("version", None, "the baseline has no valid version number"),
        ("version", True, "the baseline has no valid version number"),
        ("version", 0, "the baseline has no valid version number"),
        ("facts", [], "the facts in the baseline must be an object with at most 64 strings"),
        ("facts", {str(i): "" for i in range(65)}, "the facts in the baseline must be an object"),
        ("facts", {"a": 1}, "a fact in the baseline must be a string of at most 4,096 characters"),
        ("facts", {"a": "x" * 4097}, "a fact in the baseline must be a string"),
        ("facts", {"a": "\udcff"}, "a fact in the baseline must be a string"),
        ("units", 3, "the units in the baseline must be a list of at most 256 numbers"),
        ("units", [1] * 257, "the units in the baseline must be a list"),
        ("units", [0], "a unit in the baseline must be a positive number"),
        ("units", [2**62], "a unit in the baseline must be a positive number"),
        ("units", [1.0], "a unit in the baseline must be a positive number"),
        ("names", {}, "the names in the baseline must be a list of pairs"),
        ("names", [["kernels"]], "the names in the baseline must be a list of pairs"),
        ("names", [["x", "y"], ["kernels", "b"]], "a kind in the baseline must be one of kernels, ops"),
        ("names", [[[], "y"], ["kernels", "b"]], "a kind in the baseline must be one of kernels, ops"),
        ("names", [["kernels", 1], ["kernels", "b"]], "a name in the baseline must be a string"),
        ("names", [["kernels", "\ud800"], ["kernels", "b"]], "a name in the baseline must be a string"),
        ("names", [["kernels", "a"]], "column row of the baseline contains a value that is not a number below 1"),
        ("names", [["kernels", "a"], ["kernels", "a"]], None),
        ("row", [0, 0, 1], "column unit of the baseline is missing, or its length differs"),
        ("row", [0, -1], "column row of the baseline contains a value"),
        ("row", [0, None], "column row of the baseline contains a value"),
        ("unit", [3, None], "column unit of the baseline contains a value that is not a number below 3"),
        ("count", [1, None], "column count of the baseline contains a value"),
        ("count", "ab", "column count of the baseline is missing"),
        ("time_ns", [1, 2**62], "column time_ns of the baseline contains a value"),
        ("time_ns", [2**61, 2**61], "the sum of column time_ns of the baseline exceeds 64 bits"),
        ("time_ns", [1, True], "column time_ns of the baseline contains a value"),
        ("time_ns", [1, 1e3], "column time_ns of the baseline contains a value"),
    ],
)
def test_wrong_values(key: str, value: object, message: str | None) -> None:
    changed = {**VALID, key: value}
    if message is None:
        assert baseline.from_json(changed).samples.height == 2
        return
    with pytest.raises(CorruptTraceError) as raised:
        baseline.from_json(changed)
    assert message in str(raised.value)


def test_other_wrong_values() -> None:
    with pytest.raises(CorruptTraceError, match="not a tracekit baseline"):
        baseline.from_json([1])
    with pytest.raises(UnsupportedVersionError, match="version 3, but only version 2 is supported"):
        baseline.from_json({**VALID, "version": 3})
    twice = {**VALID, "row": [0, 0], "unit": [0, 0]}
    with pytest.raises(CorruptTraceError, match="two samples in the baseline have the same kind, name and unit"):
        baseline.from_json(twice)
    missing = {k: v for k, v in VALID.items() if k != "bytes"}
    with pytest.raises(CorruptTraceError, match="column bytes of the baseline is missing"):
        baseline.from_json(missing)


@settings(max_examples=examples(300))
@given(st.sampled_from(sorted(VALID)), JSON, st.integers(0, 3))
def test_any_values_are_a_baseline_or_an_error(key: str, value: object, index: int) -> None:
    changed = copy.deepcopy(VALID)
    column = changed[key]
    if isinstance(column, list) and column:
        column[index % len(column)] = value
    else:
        changed[key] = value
    try:
        summary = baseline.from_json(changed)
    except TracekitError:
        return
    frame = compare.compare(summary, summary, ["kernels"]).frame("kernels")
    assert set(frame["change_ns"]) == {0}


def test_baselines_of_the_first_version_have_no_longest_event() -> None:
    first = {k: v for k, v in VALID.items() if k != "max_ns"}
    with pytest.raises(CorruptTraceError, match="column max_ns of the baseline is missing"):
        baseline.from_json(first)
    summary = baseline.from_json({**first, "version": 1})
    assert summary.samples["max_ns"].null_count() == summary.samples.height
    assert summary.samples.drop("max_ns").equals(baseline.from_json(VALID).samples.drop("max_ns"))


def test_an_empty_summary() -> None:
    empty = Summary(pl.DataFrame(schema=compare.SAMPLES))
    assert baseline.from_json(baseline.to_json(empty)).samples.equals(empty.samples)
