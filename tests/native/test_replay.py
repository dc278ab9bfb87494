"""The replay of event models, against a loop in Python that follows the description word by word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracekit.native import replay
from tracekit.native.replay import ANY_TIME, NONE, WAIT_FOR_END, WAIT_FOR_START, Replay, ReplayResult

Model = dict[str, np.ndarray]
SMALL = st.integers(0, 50)
SIGNED = st.integers(-20, 50)
EXTREME = SIGNED | st.sampled_from([2**63 - 1, 2**63 - 60, 2**62, -(2**62), -(2**63)])


def arrays_of(**lists: list[int]) -> Model:
    """Return a model, with the values of all arrays that are omitted."""
    sizes = {d: len(lists[name]) for d, name in replay._DIMENSIONS.items()}
    full = {n: lists.get(n, [a.default] * sizes[a.dimension]) for n, a in replay._INPUTS.items()}
    return {n: np.array(full[n], a.dtype) for n, a in replay._INPUTS.items()}


@st.composite
def models(draw: st.DrawFn, times: st.SearchStrategy[int] = SIGNED) -> Model:
    """Models of at most 8 items and 16 ops on at most 3 lanes each."""
    cpu, gpu = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    counts = draw(st.lists(st.integers(0, 2), max_size=8))
    items, ops = len(counts), sum(counts)

    def lists(values: st.SearchStrategy[int], size: int) -> list[int]:
        return draw(st.lists(values, min_size=size, max_size=size))

    launches = np.cumsum(counts).tolist()
    kinds = [draw(st.integers(0, 2)) if n else 0 for n in launches]
    return arrays_of(
        cpu_lane_start=lists(times, cpu),
        gpu_lane_start=lists(times | st.just(ANY_TIME), gpu),
        item_lane=lists(st.integers(0, cpu - 1), items),
        item_duration=lists(times, items),
        item_op_count=counts,
        item_wait_kind=kinds,
        item_wait_target=[draw(st.integers(0, n - 1)) if k else NONE for k, n in zip(kinds, launches, strict=True)],
        item_wait_residue=lists(times, items),
        item_after=[draw(st.integers(NONE, i - 1)) for i in range(items)],
        item_earliest=lists(times | st.just(ANY_TIME), items),
        op_lane=lists(st.integers(0, gpu - 1), ops),
        op_duration=lists(times, ops),
        op_delay=lists(times, ops),
        op_gap=lists(times, ops),
        op_dependency=[draw(st.integers(NONE, i - 1)) for i in range(ops)],
        op_dependency_gap=lists(times, ops),
    )


def add(a: int, b: int) -> int:
    if not -(2**63) <= a + b < 2**63:
        raise OverflowError
    return a + b


def slow_replay(model: Model) -> dict[str, list[int]]:
    """Return the starts and ends of a model, from one event at a time."""
    m: dict[str, list[Any]] = {name: values.tolist() for name, values in model.items()}
    start: dict[tuple[str, int], int] = {}
    end: dict[tuple[str, int], int] = {}
    previous_item: dict[int, int] = {}
    previous_op: dict[int, int] = {}
    op = 0
    for i, (lane, earliest, after) in enumerate(zip(m["item_lane"], m["item_earliest"], m["item_after"], strict=True)):
        previous = end["item", previous_item[lane]] if lane in previous_item else m["cpu_lane_start"][lane]
        start["item", i] = max([earliest, previous, *([end["item", after]] if after >= 0 else [])])
        previous_item[lane] = i
        for _ in range(m["item_op_count"][i]):
            gpu, dependency = m["op_lane"][op], m["op_dependency"][op]
            bounds = [add(start["item", i], m["op_delay"][op])]
            if gpu in previous_op:
                bounds.append(add(end["op", previous_op[gpu]], m["op_gap"][op]))
            else:
                bounds.append(m["gpu_lane_start"][gpu])
            if dependency >= 0:
                bounds.append(add(end["op", dependency], m["op_dependency_gap"][op]))
            start["op", op] = max(bounds)
            end["op", op] = add(start["op", op], m["op_duration"][op])
            if gpu not in previous_op or end["op", op] > end["op", previous_op[gpu]]:
                previous_op[gpu] = op
            op += 1
        end["item", i] = add(start["item", i], m["item_duration"][i])
        kind, target, residue = (m[f"item_wait_{name}"][i] for name in ("kind", "target", "residue"))
        if kind:
            waited = {WAIT_FOR_END: end, WAIT_FOR_START: start}[kind]["op", target]
            end["item", i] = max(end["item", i], add(waited, residue))
    items, ops = len(m["item_lane"]), len(m["op_lane"])
    return {
        "item_start": [start["item", i] for i in range(items)],
        "item_end": [end["item", i] for i in range(items)],
        "op_start": [start["op", i] for i in range(ops)],
        "op_end": [end["op", i] for i in range(ops)],
    }


def lists_of(result: ReplayResult) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in result._asdict().items()}


@given(models())
def test_against_the_slow_replay(model: Model) -> None:
    assert lists_of(Replay(**model).run()) == slow_replay(model)


@given(models(EXTREME))
def test_times_that_exceed_the_range(model: Model) -> None:
    try:
        expected = slow_replay(model)
    except OverflowError:
        with pytest.raises(OverflowError, match=r"a time of (item|op) \d+ exceeds the range of 64-bit integers"):
            Replay(**model).run()
    else:
        assert lists_of(Replay(**model).run()) == expected


@given(models(), st.data())
def test_nothing_becomes_earlier_when_something_takes_longer(model: Model, data: st.DataObject) -> None:
    names = ["item_duration", "op_duration", "op_delay", "op_gap", "op_dependency_gap", "item_wait_residue"]
    name = data.draw(st.sampled_from(names))
    longer = model[name] + np.array(
        data.draw(st.lists(SMALL, min_size=len(model[name]), max_size=len(model[name]))), int
    )
    program = Replay(**model)
    for earlier, later in zip(program.run(), program.run(**{name: longer}), strict=True):
        assert (later >= earlier).all()


@given(models(), st.data())
def test_edits_do_not_leak(model: Model, data: st.DataObject) -> None:
    program, original = Replay(**model), slow_replay(model)
    for _ in range(3):
        edits = {}
        for name in data.draw(st.sets(st.sampled_from(["item_duration", "item_wait_kind", "op_duration", "op_gap"]))):
            values = st.just(replay.NO_WAIT) if name == "item_wait_kind" else SIGNED
            size = len(model[name])
            edits[name] = np.array(data.draw(st.lists(values, min_size=size, max_size=size)), model[name].dtype)
        edited = program.run(**edits)
        assert lists_of(program.run()) == original
        assert lists_of(edited) == slow_replay(model | edits)


EXAMPLE = arrays_of(
    cpu_lane_start=[0, 5],
    gpu_lane_start=[0, 0],
    item_lane=[0, 0, 1, 0],
    item_duration=[10, 4, 3, 1],
    item_op_count=[2, 1, 0, 0],
    item_wait_kind=[0, WAIT_FOR_END, WAIT_FOR_START, 0],
    item_wait_target=[NONE, 1, 2, NONE],
    item_wait_residue=[0, 2, -1, 0],
    item_after=[NONE, NONE, NONE, 2],
    item_earliest=[ANY_TIME, 11, ANY_TIME, ANY_TIME],
    op_lane=[0, 0, 1],
    op_duration=[20, 30, 5],
    op_delay=[3, 3, 1],
    op_gap=[9, 1, 9],
    op_dependency=[NONE, NONE, 0],
    op_dependency_gap=[9, 9, 2],
)


def test_an_example() -> None:
    """A thread waits for its second kernel, and another thread until a kernel on another stream starts."""
    result = lists_of(Replay(**EXAMPLE).run())
    assert result == {
        "item_start": [0, 11, 5, 56],
        "item_end": [10, 56, 24, 57],
        "op_start": [3, 24, 25],
        "op_end": [23, 54, 30],
    }
    assert result == slow_replay(EXAMPLE)


def test_arrays_that_are_omitted() -> None:
    names = [
        "cpu_lane_start",
        "gpu_lane_start",
        "item_lane",
        "item_duration",
        "item_op_count",
        "op_lane",
        "op_duration",
    ]
    assert lists_of(Replay(**{name: EXAMPLE[name] for name in names}).run()) == {
        "item_start": [0, 10, 5, 14],
        "item_end": [10, 14, 8, 15],
        "op_start": [0, 20, 10],
        "op_end": [20, 50, 15],
    }


def test_an_empty_model() -> None:
    empty = arrays_of(cpu_lane_start=[], gpu_lane_start=[], item_lane=[], op_lane=[])
    assert lists_of(Replay(**empty).run()) == {name: [] for name in ReplayResult._fields}


def test_the_arrays_of_the_caller_may_change() -> None:
    duration = EXAMPLE["item_duration"].copy()
    program = Replay(**EXAMPLE | {"item_duration": duration})
    duration[:] = 1000
    assert lists_of(program.run()) == slow_replay(EXAMPLE)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"item_lane": [0, 2, 1, 0]}, r"item_lane\[1\] is 2, but it must be the index of a lane in cpu_lane_start"),
        ({"item_lane": [0, 0, 1, -1]}, r"item_lane\[3\] is -1, but"),
        ({"item_after": [0, -1, -1, -1]}, r"item_after\[0\] is 0, but it must be the index of an earlier item, or -1"),
        ({"item_after": [-1, -1, -2, -1]}, r"item_after\[2\] is -2, but"),
        ({"item_op_count": [2, 2, 0, 0]}, r"item_op_count\[1\] is 2, but it must be at least 0, and the sum"),
        ({"item_op_count": [-1, 4, 0, 0]}, r"item_op_count\[0\] is -1, but"),
        (
            {"item_op_count": [2, 0, 0, 0], "item_wait_kind": [0] * 4},
            "the sum of item_op_count is 2, but the model has 3 ops",
        ),
        ({"item_wait_kind": [0, 0, 3, 0]}, r"item_wait_kind\[2\] is 3, but it must be 0, 1 or 2"),
        ({"item_wait_kind": [1, 0, 0, 0]}, r"item_wait_target\[0\] is -1, but it must be the index of an op that this"),
        ({"item_wait_target": [0, 3, 0, 0]}, r"item_wait_target\[1\] is 3, but"),
        ({"op_lane": [0, 0, 2]}, r"op_lane\[2\] is 2, but it must be the index of a lane in gpu_lane_start"),
        ({"op_lane": [-1, 0, 0]}, r"op_lane\[0\] is -1, but"),
        ({"op_dependency": [-1, 1, -1]}, r"op_dependency\[1\] is 1, but it must be the index of an earlier op, or -1"),
        ({"op_dependency": [-1, -1, -(2**31)]}, r"op_dependency\[2\] is -2147483648, but"),
        ({"op_duration": [1, 1]}, r"op_duration has the shape \(2,\), but the model has 3 ops"),
        ({"op_duration": [[1, 1, 1]]}, r"op_duration has the shape \(1, 3\), but the model has 3 ops"),
    ],
)
def test_invalid_values(edits: dict[str, list[int]], message: str) -> None:
    arrays = {name: np.array(values, EXAMPLE[name].dtype) for name, values in edits.items()}
    program = Replay(**EXAMPLE)
    with pytest.raises(ValueError, match=message):
        program.run(**arrays)
    assert lists_of(program.run()) == slow_replay(EXAMPLE)
    with pytest.raises(ValueError, match=message):
        Replay(**EXAMPLE | arrays).run()


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        (
            {"op_length": np.zeros(3, np.int64)},
            "the model has no array op_length, only cpu_lane_start, gpu_lane_start, ",
        ),
        ({"item_start": np.zeros(4, np.int64)}, "the model has no array item_start"),
        ({"op_lane": np.zeros(3, np.int64)}, "op_lane has the data type int64, which cannot be stored as int32"),
        ({"op_gap": np.zeros(3)}, "op_gap has the data type float64, which cannot be stored as int64"),
        ({"op_gap": np.zeros(3, np.uint64)}, "op_gap has the data type uint64, which"),
        ({"op_gap": np.array([None] * 3)}, "op_gap has the data type object, which"),
    ],
)
def test_invalid_arrays(edits: Model, message: str) -> None:
    program = Replay(**EXAMPLE)
    with pytest.raises(TypeError, match=message):
        program.run(**edits)
    with pytest.raises(TypeError, match=message):
        Replay(**EXAMPLE | edits)


def test_smaller_data_types_are_converted() -> None:
    narrow = {name: values.astype(np.int8) for name, values in EXAMPLE.items() if name.endswith(("duration", "lane"))}
    assert lists_of(Replay(**EXAMPLE | narrow).run()) == slow_replay(EXAMPLE)


def test_required_arrays() -> None:
    with pytest.raises(TypeError, match="the model has no item_lane, op_duration"):
        Replay(**{name: values for name, values in EXAMPLE.items() if name not in ("item_lane", "op_duration")})


def test_a_model_that_is_too_large() -> None:
    zeros = np.broadcast_to(np.int32(0), 1 << 26)
    model = EXAMPLE | {name: zeros for name in EXAMPLE if name.startswith("op_")}
    with pytest.raises(MemoryError, match="the model needs 6442451640 bytes, and at most 4294901760 are possible"):
        Replay(**model)
