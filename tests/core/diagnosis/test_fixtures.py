"""The diagnosis of real captures: the figures agree with one another."""

from __future__ import annotations

import contextlib
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tracekit as tk
from tests.conftest import FIXTURES, SHARED
from tests.core.diagnosis.test_model import check_items
from tests.core.diagnosis.test_replay import check_recorded_times
from tracekit.core.diagnosis import Why, causes, ledger
from tracekit.core.diagnosis.answer import LedgerPart
from tracekit.core.diagnosis.cures import HIGH, LIKELY, LOW, Cure, apply_cures
from tracekit.core.diagnosis.events import read_events
from tracekit.core.diagnosis.inspection import Inspection
from tracekit.core.diagnosis.model import Model, build_model
from tracekit.core.diagnosis.replay import ModelReplay
from tracekit.core.diagnosis.texts import write_explanation
from tracekit.errors import TracekitError
from tracekit.pages.answer import build_waterfall
from tracekit.plan.tables import get_rollup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracekit.text.explanations import LedgerRow

GPU_WORK = (
    *("ddp2.sqlite", "gpu_metrics.sqlite", "graph_node.sqlite", "jax_mlp.sqlite", "mpi_rank0.sqlite", "um.sqlite"),
    *("nvtx_features.sqlite", "osrt_libs.sqlite", "train_amp.sqlite", "kineto/train.pt.trace.json.gz"),
    *("memory/memory_pools.sqlite", "openacc/report.nsys-rep", "ops/emit_nvtx.nsys-rep", "ops/jax_scopes.nsys-rep"),
    *("ops/kineto_nsys.nsys-rep", "ops/modules.nsys-rep", "ops/pyprof_like.nsys-rep", "payloads/nccl.nsys-rep"),
    *("payloads/xla.nsys-rep", "steps/annotated.pt.trace.json.gz", "steps/gpt.pt.trace.json.gz"),
    *("steps/nested.sqlite", "steps/stacks.pt.trace.json.gz"),
)


def check_waterfall(rows: Sequence[LedgerRow], total_ns: int) -> None:
    """Check that the bars of a waterfall follow one another, and end where the time ends."""
    page = str(build_waterfall(rows, total_ns, "Time"))
    bars = re.findall(r'data-start="(\d+)" data-ns="(\d+)"', page)
    end = 0
    for start, length in ((int(a), int(b)) for a, b in bars):
        assert start == end
        end += length
    assert (len(bars), end) == (len(rows), total_ns)


def check_figures(answer: Why) -> None:
    """Check that the figures of an answer agree with one another."""
    for rank in answer.ranks:
        check_figures(rank)
    step = answer.step
    if step is None:
        assert answer.ledger == answer.causes == ()
        assert answer.status in {"not_recorded", "not_applicable"}
        return
    assert sum(part.ns for part in answer.ledger) == step.median_ns
    texts = write_explanation(answer)
    check_waterfall(texts.ledger, step.median_ns)
    check_waterfall(texts.cold_ledger, texts.cold_ns)
    check_ledger(answer.ledger, step.total_ns)
    if answer.cold is not None:
        check_ledger(answer.cold.ledger, answer.cold.total_ns)
        assert answer.cold.count == step.cold
    assert answer.replay_error == 0
    assert answer.status in {"answered", "nothing_found", "unsure"}
    assert len(answer.causes) <= 5
    for cause in answer.causes:
        assert cause.cause in causes.NAMES
        assert 0 <= cause.saving.low <= cause.saving.likely <= cause.saving.high <= 1
        assert 0 <= cause.after <= 1
        assert cause.change or cause.cause in {"compute_bound", "memory_bound"}
        assert cause.evidence.text
    assert 0 <= answer.together <= 1
    assert abs(answer.together - sum(cause.after for cause in answer.causes)) < 1e-9


def check_ledger(parts: tuple[LedgerPart, ...], total_ns: int) -> None:
    assert sum(part.total_ns for part in parts) == total_ns
    assert [part.total_ns for part in parts] == sorted((part.total_ns for part in parts), reverse=True)
    assert all(part.group == ledger.PARTS[part.part] for part in parts)
    assert all(sum(ns for _, ns in part.places) <= part.total_ns for part in parts)
    assert not parts or abs(sum(part.share for part in parts) - 1) < 1e-9


def check_model(model: Model) -> None:
    """Check the items, the replay and the ledger of a model, and that its cures are disjoint."""
    check_items(model)
    check_recorded_times(model)
    rows = ledger.divide_steps(model)
    sums = dict(rows.group_by("step").agg(ns="ns").select("step", rows_ns="ns").iter_rows())
    assert [sum(sums.get(i, [])) for i in range(len(model.steps))] == np.diff(model.bounds).tolist()
    inspection = Inspection(model)
    cures = list(causes.find_cures(inspection))
    check_cures(model, cures)


def check_cures(model: Model, cures: list[Cure]) -> None:
    """Check that no event belongs to two cures, that durations never grow, and that predictions are in order."""
    for owned in ("item_rows", "operation_rows"):
        rows = np.concatenate([getattr(cure, owned) for cure in cures]) if cures else np.zeros(0)
        assert len(rows) == len(set(rows.tolist()))
    duration = model.operations.duration
    for cure in cures:
        assert cure.cause in causes.NAMES
        for rows, stays in cure.items:
            assert not len(rows) or 1 >= stays[LOW] >= stays[LIKELY] >= stays[HIGH] >= 0
        for rows, (low, likely, high) in (*cure.operations, *cure.shared):
            assert (duration[rows] >= low).all()
            assert (low >= likely).all()
            assert (likely >= high).all()
            assert (high >= 0).all()
    engine = ModelReplay(model)
    times = [engine.measure(apply_cures(model, cures, case)) for case in (LOW, LIKELY, HIGH)]
    assert [model.duration_ns, *times] == sorted([model.duration_ns, *times], reverse=True)


def check_capture(path: Path) -> None:
    """Check the models of all processes of a capture, and its answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with tk.load(path) as trace:
            for events in read_events(get_rollup(trace._view.plan).steady):
                check_model(build_model(events, events.steps))
            check_figures(trace.why())


@pytest.mark.parametrize("name", GPU_WORK)
def test_captures_with_gpu_work(name: str) -> None:
    check_capture(FIXTURES / name)


SUFFIXES = (".nsys-rep", ".sqlite", ".trace.json.gz", ".trace.json")


def shared_captures() -> list[Path]:
    """Public and own captures beside the checkout that are quick to read."""
    files = [p for folder in ("captures", "corpus") for p in sorted((SHARED / folder).rglob("*"))]
    return [p for p in files if p.name.endswith(SUFFIXES) and p.is_file() and p.stat().st_size < 20_000_000]


@pytest.mark.thorough
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the captures beside the checkout")
@pytest.mark.parametrize("path", shared_captures(), ids=lambda p: "/".join(p.parts[-3:]))
def test_captures_beside_the_checkout(path: Path) -> None:
    with contextlib.suppress(TracekitError):
        check_capture(path)
