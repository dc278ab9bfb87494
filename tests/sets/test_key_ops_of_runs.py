"""The iterations of all captures of a comparison are delimited by the same op, if they have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tracekit as tk
from tests.builders.declared import build_frames, build_kernel, build_launch, build_range

if TYPE_CHECKING:
    from pathlib import Path


def record(path: Path, *, lost: int = 0, warm_up: int = 4, step_us: int = 10_000) -> Path:
    """Write a run of steps after a warm-up without them. The kernels of the last steps are lost."""
    launches = [(n + 1, n * step_us * 1000) for n in range(warm_up + 6 - lost)]
    rows = {
        "nvtx_ranges": [
            build_range(n, f"step {n}", (warm_up + n) * step_us * 1000, (warm_up + n + 1) * step_us * 1000 - 100)
            for n in range(6)
        ],
        "api_calls": [build_launch(n, start + 10) for n, start in launches],
        "kernels": [build_kernel(n, start + 100, start + 5_000_000) for n, start in launches],
    }
    frames = build_frames(**rows)
    trace = tk.Trace.from_tables({name: frames(name).collect().to_arrow() for name, each in rows.items() if each})
    trace.export(path, format="parquet")
    return path


def test_a_run_that_lacks_events_has_the_steps_of_the_others(tmp_path: Path) -> None:
    """A run that lost the kernels of three of six steps launches most of the others in its warm-up."""
    a = [record(tmp_path / f"a{n}", lost=3 * (n == 0), step_us=10_000 + 7 * n) for n in range(3)]
    b = [record(tmp_path / f"b{n}", lost=3 * (n == 2), step_us=9000 + 5 * n) for n in range(3)]
    result = tk.check(list(a), list(b))
    assert (result.verdict, result.runs_a, result.runs_b) == ("faster", 3, 3)
    assert [note for note in result.notes if "key op" in note] == []


def test_both_sides_of_a_comparison_have_the_same_steps(tmp_path: Path) -> None:
    whole, partial = record(tmp_path / "whole"), record(tmp_path / "partial", lost=3)
    for sides in ((whole, partial), (partial, whole)):
        diff = tk.diff(*sides)
        assert [side.facts["key_op"] for side in (diff.a, diff.b)] == ["step *"] * 2


def test_an_op_that_was_chosen_is_kept(tmp_path: Path) -> None:
    whole, partial = record(tmp_path / "whole"), record(tmp_path / "partial", lost=3)
    diff = tk.diff(tk.load(whole), tk.load(partial).rollup())
    assert [side.facts.get("key_op") for side in (diff.a, diff.b)] == ["step *", None]
