"""When the expert systems speak, and when they do not."""

from __future__ import annotations

import pytest
from tests.core.scenes import declared, nvtx
from tracekit.core.dlprof import tables
from tracekit.core.rollup import Rollup

BACKWARD = "{'mod': 'torch', 'op': 'backward', 'args': []}"
LINEAR = "{'mod': 'torch', 'op': 'linear', 'args': []}"


def findings(lengths: list[int], *more: str) -> dict[str, tuple[str, str]]:
    """Problem and arguments by finding, of a program with steps of some lengths."""
    ranges, start = [(text, 1, 0, 1) for text in more], 10
    for length in lengths:
        ranges += [(LINEAR, 1, start, start + length // 2), (BACKWARD, 1, start + length // 2, start + length)]
        start += length
    made = tables(Rollup.of(declared(nvtx_ranges=nvtx(*ranges)), dialect="pyprof"))["expert_systems_feedback"]
    return {row[1].split("\n")[0]: (row[2], row[5]) for row in made.iter_rows()}


def unsteady(lengths: list[int]) -> list[str]:
    return [args for problem, args in findings(lengths).values() if "differ much in length" in problem]


def test_the_steady_iterations_are_named() -> None:
    assert unsteady([900, 800, *[100] * 14, 700]) == ['{"ideal_start":"2","ideal_stop":"15"}\n']


def test_equal_iterations_are_steady() -> None:
    assert unsteady([100] * 12) == []


@pytest.mark.parametrize("lengths", [[900, 100, 100, 100], [100, 900] * 8, [500]])
def test_too_few_steady_iterations_are_not_named(lengths: list[int]) -> None:
    assert unsteady(lengths) == []


def test_settings_that_the_program_recorded() -> None:
    said = "Convolutions ran without torch.backends.cudnn.benchmark"
    off = findings([100, 100], '{"model_config": {"cudnn_benchmark_disabled": true}}')
    on = findings([100, 100], '{"model_config": {"cudnn_benchmark_disabled": false}}')
    assert [p for p, _ in off.values() if p == said] == [said]
    assert [p for p, _ in on.values() if p == said] == []
