"""Runs of a made program for checks, as summaries: a step that consists of kernels, with variation between runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from tracekit.core.compare import SAMPLES, Summary
from tracekit.core.compare.summary import DURATION

if TYPE_CHECKING:
    from collections.abc import Mapping

FACTS = {"key_op": "step *", "gpus": "1 × GPU X"}
ITERATIONS = 10
STEP_NS = 50_000_000


def make_run(
    times: Mapping[tuple[str, str | None], int],
    *,
    iterations: int = ITERATIONS,
    facts: Mapping[str, str] | None = None,
    count: int = 1,
) -> Summary:
    """A run with a total time per kind and name, all in its iterations."""
    unit = 0 if iterations else None
    rows = [(kind, name, unit, count, time, None, None) for (kind, name), time in times.items()]
    samples = pl.DataFrame(rows, schema=SAMPLES, orient="row")
    return Summary(samples, (iterations,) if iterations else (), FACTS if facts is None else facts)


def make_runs(
    count: int,
    seed: int,
    *,
    variation: float = 0.02,
    factor: float = 1.0,
    kernels: int = 0,
    slow: Mapping[int, float] | None = None,
    tail: bool = False,
) -> list[Summary]:
    """Runs whose steps vary from run to run.

    Args:
        count: Number of runs.
        seed: Seed of the variation.
        variation: Standard deviation between runs, as a share. Half of its square is common to all kernels of a run.
        factor: Factor of the duration of all steps and kernels.
        kernels: Number of kernels.
        slow: Factors of single kernels.
        tail: Whether the variation has the heavy tails of a t-distribution with 3 degrees of freedom.
    """
    generator = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        values = generator.standard_t(3, shape) / np.sqrt(3) if tail else generator.normal(size=shape)
        return values * variation

    step = 1 + draw(count)
    own = 1 + (draw(count, kernels) + draw(count)[:, None]) / np.sqrt(2)
    base = np.random.default_rng(1).uniform(0.2, 2, kernels) * STEP_NS * ITERATIONS / max(kernels, 1) / 2
    times = base * own * factor * np.array([(slow or {}).get(k, 1.0) for k in range(kernels)])
    steps = np.rint(step * factor * STEP_NS * ITERATIONS).astype(np.int64)
    return [
        make_run(
            {("iterations", DURATION): int(steps[i])}
            | {("kernels", f"kernel_{k}"): int(times[i, k]) for k in range(kernels)}
        )
        for i in range(count)
    ]
