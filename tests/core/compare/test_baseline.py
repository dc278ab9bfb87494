"""Baselines: a round trip, and values that are not those of a baseline."""

from __future__ import annotations

import copy
import json
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders import training_runs
from tests.conftest import examples
from tests.core.compare.test_diff import SAMPLE, summary_of
from tracekit.core import compare
from tracekit.core.compare import Summary, baseline
from tracekit.errors import CorruptTraceError, TracekitError, UnsupportedVersionError
from tracekit.sets.comparison import Summarizer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
VALID = baseline.encode_summary(summary_of([("a", 0, 1, 5), ("b", None, 2, 7)]))


@pytest.mark.slow
def test_a_baseline_is_the_same_summary() -> None:
    summary = Summarizer(tuple(compare.KINDS)).summarize(training_runs.run(1))
    again = baseline.decode_summary(json.loads(json.dumps(baseline.encode_summary(summary))))
    assert again.samples.equals(summary.samples)
    assert again.samples.schema == summary.samples.schema
    assert (again.units, again.facts) == (summary.units, summary.facts)
    assert len(json.dumps(baseline.encode_summary(summary))) < 100_000


@settings(max_examples=examples(100))
@given(st.lists(SAMPLE, max_size=8))
def test_round_trip(samples: list[Any]) -> None:
    summary = summary_of(samples)
    again = baseline.decode_summary(json.loads(json.dumps(baseline.encode_summary(summary))))
    assert again.samples.equals(summary.samples)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "x", "the file is not a tracekit baseline"),
        ("version", None, '"version" in the baseline must be a positive integer'),
        ("version", True, '"version" in the baseline must be a positive integer'),
        ("version", 0, '"version" in the baseline must be a positive integer'),
        ("facts", [], '"facts" in the baseline must be an object with at most 64 members'),
        ("facts", {str(i): "" for i in range(65)}, '"facts" in the baseline must be an object'),
        (
            "facts",
            {"a": 1},
            'each key and value of "facts" in the baseline must be a string of at most 4,096 characters',
        ),
        ("facts", {"a": "x" * 4097}, 'each key and value of "facts" in the baseline must be a string'),
        ("facts", {"a": "\udcff"}, 'each key and value of "facts" in the baseline must be a string'),
        ("units", 3, '"units" in the baseline must be a list of at most 256 integers'),
        ("units", [1] * 257, '"units" in the baseline must be a list'),
        ("units", [0], 'each value in "units" of the baseline must be a positive integer: the number of iterations'),
        (
            "units",
            [2**62],
            'each value in "units" of the baseline must be a positive integer: the number of iterations',
        ),
        ("units", [1.0], 'each value in "units" of the baseline must be a positive integer: the number of iterations'),
        ("names", {}, '"names" in the baseline must be a list of pairs of a kind and a name'),
        ("names", [["kernels"]], '"names" in the baseline must be a list of pairs of a kind and a name'),
        (
            "names",
            [["x", "y"], ["kernels", "b"]],
            'the first value of each pair in "names" of the baseline must be a kind: kernels, ops',
        ),
        (
            "names",
            [[[], "y"], ["kernels", "b"]],
            'the first value of each pair in "names" of the baseline must be a kind: kernels, ops',
        ),
        (
            "names",
            [["kernels", 1], ["kernels", "b"]],
            'the second value of each pair in "names" of the baseline must be a string or null',
        ),
        (
            "names",
            [["kernels", "\ud800"], ["kernels", "b"]],
            'the second value of each pair in "names" of the baseline must be a string or null',
        ),
        (
            "names",
            [["kernels", "a"]],
            'each value in "row" of the baseline must be an integer of at least 0 and below 1',
        ),
        ("names", [["kernels", "a"], ["kernels", "a"]], None),
        (
            "row",
            [0, 0, 1],
            '"unit" in the baseline must be a list with one value per sample, of the same length as "row"',
        ),
        ("row", [0, -1], 'each value in "row" of the baseline must be an integer of at least 0 and below 2'),
        ("row", [0, None], 'each value in "row" of the baseline must be an integer of at least 0 and below 2'),
        (
            "unit",
            [3, None],
            'each value in "unit" of the baseline must be null or an integer of at least 0 and below 3',
        ),
        (
            "count",
            [1, None],
            'each value in "count" of the baseline must be an integer of at least 0 and below 4,611,686,',
        ),
        ("count", "ab", '"count" in the baseline must be a list'),
        ("time_ns", [1, 2**62], 'each value in "time_ns" of the baseline must be an integer'),
        (
            "time_ns",
            [2**61, 2**61],
            'the sum of the values in "time_ns" of the baseline must be below 4,611,686,018,427,387,904',
        ),
        ("time_ns", [1, True], 'each value in "time_ns" of the baseline must be an integer'),
        ("time_ns", [1, 1e3], 'each value in "time_ns" of the baseline must be an integer'),
    ],
)
def test_wrong_values(key: str, value: object, message: str | None) -> None:
    changed = {**VALID, key: value}
    if message is None:
        assert baseline.decode_summary(changed).samples.height == 2
        return
    with pytest.raises(CorruptTraceError) as raised:
        baseline.decode_summary(changed)
    assert message in str(raised.value)


def test_other_wrong_values() -> None:
    with pytest.raises(CorruptTraceError, match="not a tracekit baseline"):
        baseline.decode_summary([1])
    with pytest.raises(UnsupportedVersionError, match="version 4, but only versions up to 3 are supported"):
        baseline.decode_summary({**VALID, "version": 4})
    with pytest.raises(UnsupportedVersionError, match="contains runs for tracekit check, not one capture"):
        baseline.decode_summary({**VALID, "version": 3})
    twice = {**VALID, "row": [0, 0], "unit": [0, 0]}
    with pytest.raises(CorruptTraceError, match='two entries of the baseline have the same "row"'):
        baseline.decode_summary(twice)
    missing = {k: v for k, v in VALID.items() if k != "bytes"}
    with pytest.raises(CorruptTraceError, match='"bytes" in the baseline must be a list'):
        baseline.decode_summary(missing)


@pytest.mark.slow
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
        summary = baseline.decode_summary(changed)
    except TracekitError:
        return
    frame = compare.compare(summary, summary, ["kernels"]).frame("kernels")
    assert set(frame["change_ns"]) == {0}


def test_baselines_of_the_first_version_have_no_longest_event() -> None:
    first = {k: v for k, v in VALID.items() if k != "max_ns"}
    with pytest.raises(CorruptTraceError, match='"max_ns" in the baseline must be a list'):
        baseline.decode_summary(first)
    summary = baseline.decode_summary({**first, "version": 1})
    assert summary.samples["max_ns"].null_count() == summary.samples.height
    assert summary.samples.drop("max_ns").equals(baseline.decode_summary(VALID).samples.drop("max_ns"))


def test_an_empty_summary() -> None:
    empty = Summary(pl.DataFrame(schema=compare.SAMPLES))
    assert baseline.decode_summary(baseline.encode_summary(empty)).samples.equals(empty.samples)


def test_baselines_of_several_runs() -> None:
    runs = [summary_of([("a", 0, 1, time)]) for time in (5, 7)]
    value = json.loads(json.dumps(baseline.encode_runs(runs)))
    assert value["version"] == 3
    assert [read.samples.equals(run.samples) for read, run in zip(baseline.decode_runs(value), runs, strict=True)] == [
        True,
        True,
    ]
    (single,) = baseline.decode_runs(VALID)
    assert single.samples.equals(baseline.decode_summary(VALID).samples)
    for wrong in ({**value, "runs": []}, {**value, "runs": {}}, {**value, "runs": [VALID] * 1001}):
        with pytest.raises(CorruptTraceError, match='"runs" in the baseline must be a list of 1 to 1,000 runs'):
            baseline.decode_runs(wrong)
