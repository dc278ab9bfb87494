"""Comparisons leave out the warm-up, and state what delimits the iterations."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tracekit.core import compare
from tracekit.sets.comparison import Summarizer

pytestmark = pytest.mark.slow

TRAIN, NESTED = FIXTURES / "train_amp.sqlite", FIXTURES / "steps" / "nested.sqlite"
STEPS = "4 steps, delimited by the range 'Batch *'; 334 of 334 kernels and 100 % of the GPU time lie in steps"
WARM_UP = "the first step is warm-up and"


def count(summary: compare.Summary, kind: str) -> int:
    return int(summary.select_samples_of_kind(kind)["count"].sum())


def test_the_warm_up_is_left_out_of_all_kinds() -> None:
    """The events of iteration 0 are omitted, as if the iterations 1 to 3 had been chosen."""
    kinds = tuple(compare.KINDS)
    steady, complete = (Summarizer(kinds, include_warm_up=w).summarize(TRAIN) for w in (False, True))
    chosen = Summarizer(kinds, iterations=(1, None)).summarize(TRAIN)
    assert (steady.iterations, complete.iterations, chosen.iterations) == (3, 4, 3)
    assert (count(steady, "kernels"), count(complete, "kernels")) == (334 - 104, 334)
    assert count(steady, "iterations") * 4 == count(complete, "iterations") * 3
    for kind in kinds:
        inside = steady.select_samples_of_kind(kind).drop_nulls("unit")
        assert inside.equals(chosen.select_samples_of_kind(kind)), kind


def test_events_outside_of_iterations_are_kept() -> None:
    """They are omitted only if iterations were chosen, because the other side may have no warm-up."""
    summaries = [Summarizer(("kernels",), include_warm_up=w).summarize(NESTED) for w in (False, True)]
    outside = [s.samples.filter(pl.col("unit").is_null())["count"].sum() for s in summaries]
    assert outside == [1186 - 1144] * 2
    assert [s.iterations for s in summaries] == [15, 16]


def test_a_rolled_up_trace_decides_itself() -> None:
    with tk.load(TRAIN) as trace:
        sides = {
            name: Summarizer(("kernels",)).summarize(trace.correlate().rollup(**options))  # type: ignore[arg-type]
            for name, options in {
                "default": {},
                "left out": {"include_warm_up": False},
                "included": {"include_warm_up": True},
                "dlprof": {"tensor_cores": "dlprof"},
            }.items()
        }
    assert {name: side.iterations for name, side in sides.items()} == {
        "default": 3, "left out": 3, "included": 4, "dlprof": 4,
    }  # fmt: skip


@pytest.mark.parametrize(("included", "selection"), [(False, "left out"), (True, "included")])
def test_the_steps_of_both_sides_are_described(included: bool, selection: str, tmp_path: Path) -> None:
    diff = tk.diff(TRAIN, NESTED, by=["kernels"], include_warm_up=included)
    assert diff.step_notes[0] == f"steps of A: {STEPS}; {WARM_UP} {selection}."
    assert diff.step_notes[1].startswith("steps of B: 16 steps, delimited by the range 'step *'; ")
    same = tk.diff(diff.a, diff.a, by=["kernels"])
    assert same.step_notes == (f"steps of A and B: {STEPS}; {WARM_UP} {selection}.",)
    assert same.to_dict()["a"]["steps"] == f"{STEPS}; {WARM_UP} {selection}."
    baseline = tk.save_baseline(TRAIN, tmp_path / "a.json", include_warm_up=included)
    assert tk.diff(baseline, diff.a, by=["kernels"]).step_notes == same.step_notes


def test_missing_work_is_a_warning_and_captures_without_gpu_work_have_no_note() -> None:
    kinds = ("kernels", "api")
    partial, cpu = (Summarizer(kinds).summarize(FIXTURES / f"{name}.sqlite") for name in ("um", "cpu_only"))
    assert "steps of A and B: Warning: 3 steps" in tk.diff(partial, partial, by=kinds).step_notes[0]
    assert tk.diff(cpu, cpu, by=kinds).step_notes == ()


def test_ranks_are_described_together() -> None:
    ranks = FIXTURES / "ranks"
    side = Summarizer(("kernels",)).summarize(ranks)
    (note,) = tk.diff(side, side, by=["kernels"]).step_notes
    assert note.startswith("steps of A and B: Warning: all 2 ranks: 5 steps each, delimited by the range 'step *'; ")
    assert note.endswith(f"; {WARM_UP} left out.")
