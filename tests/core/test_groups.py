"""Group nodes against brute force, and how much memory deep ones take."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests import fork_server
from tests.builders.frames import declared, launches, nvtx
from tracekit.core.rollup import Rollup

if TYPE_CHECKING:
    from collections.abc import Iterable

TESTS = Path(__file__).parents[1]
MEASURED = """
import sys, tempfile
from pathlib import Path
import tracekit as tk
with tk.load(sys.argv[1]) as trace, tempfile.TemporaryDirectory() as folder:
    if sys.argv[2] == "rollup":
        trace.rollup()["group_nodes"]
    elif sys.argv[2] == "correlate":
        trace.correlate()["kernels"]
    else:
        trace.export(Path(folder) / "made", format=sys.argv[2])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)  # ru_maxrss counts what the process held that started this one
"""

names = st.sampled_from(["a", "b", "a/b", "x/y.py(3): f"])
nests = st.recursive(
    st.lists(st.tuples(names, st.just([])), max_size=3), lambda n: st.lists(st.tuples(names, n), max_size=3)
)


def drawn(nest: list, at: int = 0, way: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], int, int]]:
    """Lay out a nest: the names from the outermost range down, start and end of each range, with a launch in each."""
    for name, inner in nest:
        rows = list(drawn(inner, at + 10, (*way, name)))
        end = max([at + 10, *(e for _, _, e in rows)]) + 10
        yield (*way, name), at, end
        yield from rows
        at = end + 5


@given(nests)
def test_groups_are_ranges_with_what_is_below_them(nest) -> None:
    rows = list(drawn(nest))
    calls = launches(*((1, start + 1, start + 4, 0) for _, start, _ in rows))
    rollup = Rollup.from_frames(
        declared(nvtx_ranges=nvtx(*((w[-1], 1, s, e) for w, s, e in rows)), **calls), dialect="plain"
    )
    found = rollup.groups.filter(pl.col("level") > 0)
    by_op: dict[str, tuple[str, ...]] = {}
    rows.sort(key=lambda r: r[1])
    for way, _, _ in rows:
        by_op.setdefault("/".join(way), way)  # ops of one name are one, where it was first
    expected: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for (way, start, end), iteration in zip(rows, rollup.iteration, strict=True):
        placed = by_op["/".join(way)]
        for level in range(1, len(placed)):
            expected.setdefault(placed[:level], []).extend([(start, end)] if iteration is not None else [])
    made = {(p, n): (c, g) for p, n, c, g in found.select("path", "level", "instance_count", "gpu_sum").rows()}
    assert made.keys() == {("/".join(w) + "/", len(w)) for w in expected}
    for way, inside in expected.items():
        same = [i for w, i in expected.items() if ("/".join(w), len(w)) == ("/".join(way), len(way))]
        if len(same) == 1:
            busy = {t for start, _ in inside for t in range(start + 2, start + 5)}
            assert made["/".join(way) + "/", len(way)] == (len(inside), len(busy))
    parents = rollup.groups["parent"].to_list()
    levels = rollup.groups["level"].to_list()
    assert [0 if p is None else levels[p] + 1 for p in parents] == levels


def test_a_slash_in_the_name_of_a_range_is_no_level() -> None:
    ranges = nvtx(("/home/me/net.py(7): forward", 1, 0, 100), ("aten::mm", 1, 10, 50))
    frames = declared(nvtx_ranges=ranges, **launches((1, 20, 30, 0)))
    found = Rollup.from_frames(frames).groups.select("path", "level", "parent").rows()
    assert found == [("", 0, None), ("/home/me/net.py(7): forward/", 1, 0)]
    as_dlprof = Rollup.from_frames(frames, tensor_cores="dlprof").groups.select("path", "level").rows()
    assert as_dlprof[-1] == ("/home/me/net.py(7): forward/", 4)


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell the memory held")
@pytest.mark.parametrize("job", ["correlate", "rollup", "tfevents", "dlprof-db"])
def test_deep_nests_take_little_memory(job: str, tmp_path: Path) -> None:
    write = runpy.run_path(str(TESTS / "benchmarks" / "deep.py"))["write"]
    path = write(tmp_path / "deep.json")
    done = fork_server.run([sys.executable, "-c", MEASURED, path, job], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000


@pytest.mark.slow
def test_forward_and_backward_of_a_scope_are_two_groups() -> None:
    with tk.load("fixtures/train_amp.sqlite") as trace:
        rolled = trace.rollup()
        ops, groups = rolled.frame("ops").collect(), rolled.frame("group_nodes").collect()
        as_dlprof = trace.rollup(tensor_cores="dlprof").frame("group_nodes").collect()
    whole = groups.filter(pl.col("level") == 0)
    assert whole.select("path", "direction", "instance_count").rows() == [("", None, ops["instance_count"].sum())]
    assert groups.select("path", "direction").is_unique().all()
    path = "Batch */Forward pass/"
    below = ops.filter(pl.col("op_name").cast(pl.String).str.starts_with(path))
    scope = dict(groups.filter(pl.col("path") == path).select("direction", "gpu_time_ns").rows())
    assert scope.keys() == {None, "fprop", "bprop"}
    for direction, spent in scope.items():
        mine = below.filter(pl.col("direction").cast(pl.String).eq_missing(pl.lit(direction, pl.String)))
        assert spent == mine["gpu_time_ns"].sum()  # nothing overlaps here
    assert as_dlprof["direction"].null_count() == as_dlprof.height
    assert as_dlprof["path"].is_unique().all()
    assert as_dlprof.filter(pl.col("path") == path)["gpu_time_ns"].item() == sum(scope.values())


def test_communication_on_other_threads_is_in_its_iteration() -> None:
    """Both steps have an all-reduce on a thread of their own; what runs before the first step stays outside."""
    steps = [(f"step {n}", 1, 100 * n, 100 * n + 90) for n in (1, 2)]
    reduces = [("ncclAllReduce", 2, 100 * n + 50, 100 * n + 60) for n in (1, 2)]
    frames = declared(
        nvtx_ranges=nvtx(
            *steps,
            *(("mm", 1, s + 10, s + 20) for _, _, s, _ in steps),
            *reduces,
            ("setup", 2, 0, 50),
            ("copy", 2, 5, 9),
        ),
        **launches(*((2, s + 1, s + 5, 0) for _, _, s, _ in reduces), (2, 6, 7, 0)),
    )
    groups = Rollup.from_frames(frames).groups
    assert groups.select("path", "instance_count", "gpu_sum").rows() == [
        ("", 6, 8),
        ("setup/", 0, 0),
        ("step */", 4, 8),
    ]
    as_dlprof = Rollup.from_frames(frames, tensor_cores="dlprof").groups
    assert as_dlprof.select("path", "gpu_sum").rows() == [("", 9), ("setup/", 1), ("step */", 0)]


@pytest.mark.slow
def test_most_of_the_time_of_ddp_is_in_its_iterations() -> None:
    with tk.load("fixtures/ddp2.sqlite") as trace:
        groups = trace.rollup().frame("group_nodes").filter(pl.col("level") < 2).collect()
    assert groups["path"].unique().sort().to_list() == ["", "iteration */"]


@pytest.mark.slow
def test_what_another_thread_nests_hangs_below_the_step_as_it_is_nested() -> None:
    steps = [(f"step {n}", 1, 100 * n, 100 * n + 90) for n in (1, 2)]
    inside = [("mm", 1, s + 10, s + 20) for _, _, s, _ in steps]
    hooks = [("hook", 2, s + 40, s + 70) for _, _, s, _ in steps]
    reduces = [("ncclAllReduce", 2, s + 50, s + 60) for _, _, s, _ in steps]
    frames = declared(
        nvtx_ranges=nvtx(*steps, *inside, *hooks, *reduces),
        **launches(*((2, s + 1, s + 5, 0) for _, _, s, _ in reduces)),
    )
    groups = Rollup.from_frames(frames).groups
    assert groups.select("path", "instance_count", "gpu_sum").rows() == [
        ("", 8, 8),
        ("step */", 6, 8),
        ("step */hook/", 2, 8),
    ]
