"""The parts of steps, compared with what each interval between two events shows."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.programs import LAUNCH, US, Program
from tests.builders.random_programs import captures, programs
from tracekit.core.diagnosis import kinds, ledger
from tracekit.core.diagnosis.model import Model
from tracekit.core.diagnosis.operations import LONG_NS, NO_WAIT, PAUSE

Parts = Counter[tuple[int, str, str]]
"""Time by step, part and label."""
GROUPS = ("compute", "opaque", "communication", "copy")
CALL_PARTS = {"synchronize": "synchronization", "allocate": "allocation", "host_allocate": "host_allocation"}


def divide(model: Model, late: list[int] | None = None) -> Parts:
    """Divide the time between any two events by looking at all events."""
    ops, items = model.operations, model.items
    running = []
    for row, (start, end, cls, item) in enumerate(zip(ops.start, ops.end, ops.cls, ops.item, strict=True)):
        kernel_class = kinds.CLASSES[cls]
        part = "communication" if kernel_class.name == "nccl" else kernel_class.name
        label, group = model.labels.names[items.label[item]], GROUPS.index(kernel_class.group)
        waits = min(late[row], end - start) if late else 0
        running.append((group, start + waits, end, part, label, len(running)))
        if waits:
            running.append((group, start, start + waits, "communication_wait", label, -len(running)))
    times = {*model.bounds.tolist(), *items.start.tolist(), *items.end.tolist()}
    times.update(int(t) for _, start, end, *_ in running for t in (start, end))
    parts: Parts = Counter()
    for begin, stop in itertools.pairwise(sorted(times)):
        if begin < model.start_ns or stop > model.end_ns:
            continue
        step = max(i for i, bound in enumerate(model.bounds[:-1].tolist()) if bound <= begin)
        active = [o for o in running if o[1] <= begin and o[2] >= stop]
        if active:
            _, _, _, part, label, _ = min(active, key=lambda o: (o[0], max(o[1], model.start_ns), -o[2], o[5]))
        else:
            part, label = name_idle_time(model, begin)
        parts[step, part, label] += stop - begin
    return parts


def name_idle_time(model: Model, time: int) -> tuple[str, str]:
    """Return the part and the label of what the CPU does at a time."""
    items = model.items
    rows = np.flatnonzero((items.lane == 0) & (items.start <= time) & (items.end > time))
    if not len(rows):
        return "launch_latency", ""
    (row,) = rows.tolist()
    label = model.labels.names[items.label[row]]
    if model.events.has_no_cpu_events:
        return "unknown", label
    if items.kind[row] == PAUSE:
        return ("cpu_work" if items.end[row] - items.start[row] >= LONG_NS else "launch_code"), label
    kind = kinds.CALL_KINDS[items.kind[row]]
    if kind == "load":
        return "code_loading", label
    if kind == "copy" and items.wait[row] != NO_WAIT:
        return "blocking_copy", label
    return CALL_PARTS.get(kind, "launch_calls"), label


def check(model: Model, late: list[int] | None = None) -> None:
    rows = ledger.divide_steps(model, None if late is None else np.array(late, np.int64))
    assert {(s, str(p), label): ns for s, p, label, ns in rows.iter_rows()} == divide(model, late)
    sums = dict(rows.group_by("step").agg(pl.col("ns").sum()).iter_rows())
    assert [sums.get(i, 0) for i in range(len(model.steps))] == np.diff(model.bounds).tolist()


@given(programs())
def test_parts_of_programs(program: Program) -> None:
    check(program.model())


@given(captures())
def test_parts_of_any_capture(program: Program) -> None:
    check(program.model())


@given(programs(max_steps=2), st.data())
def test_parts_of_ranks_that_wait(program: Program, data: st.DataObject) -> None:
    model = program.model()
    is_nccl = model.find_class("nccl").tolist()
    check(model, [data.draw(st.integers(0, 50_000)) if c else 0 for c in is_nccl])


@given(programs(max_steps=2))
def test_exposed_times(program: Program) -> None:
    """An operation is exposed while no operation of a group that comes before runs."""
    model = program.model()
    ops = model.operations
    groups = [GROUPS.index(kinds.CLASSES[c].group) for c in ops.cls]
    points = sorted({*ops.start.tolist(), *ops.end.tolist()})
    for row, exposed in enumerate(ledger.find_exposed_times(model).tolist()):
        own = [(a, b) for a, b in itertools.pairwise(points) if ops.start[row] <= a and b <= ops.end[row]]
        free = [
            b - a
            for a, b in own
            if not any(
                g < groups[row] and s <= a and b <= e for g, s, e in zip(groups, ops.start, ops.end, strict=True)
            )
        ]
        assert exposed == sum(free)


def parts_of(program: Program) -> dict[str, int]:
    rows = ledger.divide_steps(program.model())
    return {str(p): int(ns) for p, ns in rows.group_by("part").agg(pl.col("ns").sum()).iter_rows()}


def test_priorities() -> None:
    """Computation comes before graphs, communication and copies."""
    program = Program()
    program.range("step 0", 0, 100 * US)
    program.range("step 1", 100 * US, 200 * US)
    call = program.call(LAUNCH, 0, 5 * US)
    program.copy(call, 10 * US, 60 * US)
    program.kernel(call, 20 * US, 50 * US, "ncclDevKernel_AllReduce", stream_id=8)
    program.graph(call, 30 * US, 45 * US, stream_id=9)
    program.kernel(call, 35 * US, 40 * US, "ampere_sgemm_128x64_nn", stream_id=10)
    program.kernel(call, 38 * US, 42 * US, "void softmax_warp_forward", stream_id=11)
    assert parts_of(program) == {
        "matmul_fp32": 5 * US,
        "softmax": 2 * US,
        "opaque_graph": 8 * US,
        "communication": 15 * US,
        "copy_h2d": 20 * US,
        "launch_calls": 5 * US,
        "launch_code": 145 * US,
    }


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("cudaDeviceSynchronize", "synchronization"),
        ("cudaMalloc", "allocation"),
        ("cudaMallocHost", "host_allocation"),
        ("cuModuleLoadData", "code_loading"),
        ("cudaEventRecord", "launch_calls"),
        ("cudaMemcpyAsync", "launch_calls"),
        (None, "launch_code"),
    ],
)
def test_idle_times(name: str | None, part: str) -> None:
    program = Program()
    if name is not None:
        program.do(name, 100 * US)
    else:
        program.pause(100 * US)
    program.launch(delay=5 * US)
    program.range("step 0", 0, program.now)
    program.range("step 1", program.now, program.now + 1)
    expected = Counter({part: 100 * US})
    expected["launch_calls"] += 5 * US
    assert parts_of(program) == {**expected, "other_kernel": 50 * US}


def test_a_copy_that_blocks() -> None:
    program = Program()
    program.transfer(blocks=True, src_memory_kind="Pageable")
    program.launch()
    program.range("step 0", 0, program.now)
    program.range("step 1", program.now, program.now + 1)
    assert parts_of(program) == {
        "blocking_copy": 9 * US,
        "launch_calls": 5 * US,
        "copy_h2d": 50 * US,
        "launch_code": 1,
        "launch_latency": 2 * US - 1,
        "other_kernel": 50 * US,
    }


def test_long_pauses_are_work_of_the_program() -> None:
    program = Program()
    program.launch(ns=0)
    program.pause(LONG_NS)
    program.launch(ns=0)
    program.pause(LONG_NS - 1)
    program.launch(ns=0, delay=0)
    parts = parts_of(program)
    assert (parts["cpu_work"], parts["launch_code"]) == (LONG_NS, LONG_NS - 1)


def test_each_part_has_a_class() -> None:
    assert set(ledger.PARTS.values()) == {"compute", "opaque", "communication", "copy", "idle"}
    assert all(ledger.PARTS[p] == "idle" for p in ledger.IDLE_PARTS)
    assert "nccl" not in ledger.PARTS


@given(captures())
def test_idle_times_are_the_idle_parts(program: Program) -> None:
    model = program.model()
    segments, item = ledger.find_idle_times(model)
    names = ledger.list_part_names(segments.part)
    totals = Counter[str]()
    for name, start, end in zip(names, segments.start.tolist(), segments.end.tolist(), strict=True):
        totals[name] += end - start
    rows = ledger.divide_steps(model).filter(pl.col("part").cast(pl.String).is_in(ledger.IDLE_PARTS))
    assert totals == Counter(dict(rows.group_by(pl.col("part").cast(pl.String)).agg(pl.col("ns").sum()).iter_rows()))
    own = item >= 0
    assert (model.items.start[item[own]] <= segments.start[own]).all()
    assert (segments.end[own] <= model.items.end[item[own]]).all()


def test_without_events_of_the_cpu_its_work_is_unknown() -> None:
    program = Program()
    program.kernel(None, 0, 10 * US)
    program.kernel(None, 5000 * US, 5010 * US)
    rows = ledger.divide_steps(program.model())
    assert dict(rows.select(pl.col("part").cast(pl.String), "ns").iter_rows()) == {
        "unknown": 4990 * US,
        "other_kernel": 20 * US,
    }
