"""Results of Nsight Compute found for kernels: real captures of one program, and made-up ones with known answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.ncu_csv import FOLDER
from tracekit import schemas
from tracekit.core.ncu import join
from tracekit.core.ncu.join import normalize_kernel_names_expr

TRAIN = Path(__file__).parents[2] / "fixtures" / "train_amp.nsys-rep"
SINGLE = ["ncu_basic.ncu-rep", "ncu_raw.csv", "ncu_details.csv", "ncu_stdout.csv"]


class Launch(NamedTuple):
    """What is launched: a kernel of some size in some ranges."""

    name: str = "a"
    grid: int = 1
    path: str | None = None
    device: int = 0
    process: int = 7


def sized(launch: Launch) -> dict[str, Any]:
    sizes = {f"{what}_{axis}": 1 for what in ("grid", "block") for axis in "xyz"} | {"grid_x": launch.grid}
    return {"process_id": launch.process, "device_id": launch.device, "range_path": launch.path, **sizes}


def kernels(launched: Sequence[Launch], **changed: Any) -> pl.LazyFrame:
    """Kernels as nsys names them; rows lie in another order than the launches."""
    rows = [
        {
            **sized(k),
            "correlation_id": i,
            "name": f"void ns::{k.name}<(int)8>(float *)",
            "short_name": k.name,
            **changed,
        }
        for i, k in enumerate(launched)
    ]
    declared = schemas.polars_schema(schemas.correlated_schema("kernels"), join.KERNEL_COLUMNS)
    return pl.LazyFrame(rows, declared).reverse()


def launches(profiled: Sequence[Launch], **changed: Any) -> pl.LazyFrame:
    """Results as ncu names them."""
    rows = [
        {
            **sized(k),
            "launch_id": i,
            "kind": "kernel",
            "process_id": k.process + 1000,
            "name": f"void {k.name}<8>(float *)",
            "range_depth": 0 if k.path is None else k.path.count("/") + 1,
            **changed,
        }
        for i, k in enumerate(profiled)
    ]
    return pl.LazyFrame(rows, schemas.polars_schema(schemas.table("ncu_launches"), join.LAUNCH_COLUMNS))


def joined(
    launched: Sequence[Launch], profiled: Sequence[Launch], **changed: Any
) -> list[tuple[int | None, str | None]]:
    """Result and way of each kernel, in the order of launches."""
    found = join.match_kernels(kernels(launched), launches(profiled, **changed))
    assert found.columns == ["ncu_launch_id", "ncu_match"]
    return found.reverse().rows()


@pytest.mark.parametrize("name", SINGLE)
def test_twelve_launches_of_a_training_step_are_its_first_twelve_kernels(name: str) -> None:
    with tk.load(TRAIN) as trace, tk.load(FOLDER / name) as ncu:
        own = trace.correlate().frame("kernels")
        found = join.match_kernels(own, ncu.frame("ncu_launches"))
        order = own.select("correlation_id").collect()["correlation_id"].arg_sort()
    assert found.height == 334
    first, rest = found[order][:12], found[order][12:]
    assert first["ncu_launch_id"].to_list() == list(range(12))
    assert first["ncu_match"].to_list() == ["range"] * 5 + ["order"] + ["range"] * 6  # one range has another operand id
    assert set(rest["ncu_match"]) == {"shape", None}
    later = rest.filter(pl.col("ncu_match") == "shape")
    assert later.height == 48
    assert set(later["ncu_launch_id"]) == set(range(12))  # the same in the next three steps


def test_a_summary_by_range_is_of_the_kernels_in_its_ranges() -> None:
    with tk.load(TRAIN) as trace, tk.load(FOLDER / "ncu_per_nvtx.csv") as ncu:
        own, groups = trace.correlate().frame("kernels"), ncu.frame("ncu_launches").collect()
        found = pl.concat([own.collect(), join.match_kernels(own, groups.lazy())], how="horizontal")
    in_range = found.filter(pl.col("ncu_match") == "group")
    paths = groups["range_path"].cast(pl.String).gather(in_range["ncu_launch_id"])
    assert in_range["range_path"].cast(pl.String).to_list() == paths.to_list()
    assert in_range.height == 11
    assert found.filter(pl.col("ncu_match") == "shape").height == 49


def test_a_summary_by_kernel_is_of_all_its_kernels() -> None:
    with tk.load(TRAIN) as trace, tk.load(FOLDER / "ncu_per_kernel.csv") as ncu:
        found = join.match_kernels(trace.correlate().frame("kernels"), ncu.frame("ncu_launches"))
    assert found["ncu_match"].value_counts(sort=True).rows() == [(None, 274), ("group", 60)]
    assert found["ncu_launch_id"].n_unique() == 11 + 1


def test_spellings_of_one_name_are_equal() -> None:
    with tk.load(FOLDER / "ncu_basic.ncu-rep") as report, tk.load(FOLDER / "ncu_raw.csv") as printed:
        names = [t.frame("ncu_launches").select(pl.col("name").cast(pl.String)).collect() for t in (report, printed)]
    assert names[0]["name"].to_list() != names[1]["name"].to_list()
    assert (
        names[0]
        .select(normalize_kernel_names_expr(pl.col("name")))
        .equals(names[1].select(normalize_kernel_names_expr(pl.col("name"))))
    )


def test_different_kernels_keep_different_names() -> None:
    with tk.load(TRAIN) as trace:
        names = trace.frame("kernels").select(pl.col("name", "mangled_name").cast(pl.String)).unique().collect()
    assert names["mangled_name"].n_unique() == 47
    assert names.select(normalize_kernel_names_expr(pl.col("name")).n_unique()).item() == 47


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void at::native::f<(int)8, (bool)1>(T1 *)", "at::f<8, 1>(T1*)"),
        ("f<(cudnnKernelDataType_t)0, (unsigned long)2ul>()", "f<0,2>()"),
        ("(anonymous namespace)::f(int)", "<unnamed>::f(int)"),
        ("x::g<(ns::e)-1>", "g<-1>"),
        ("plain_c_kernel", "plain_c_kernel"),
    ],
)
def test_spellings(one: str, other: str) -> None:
    both = pl.DataFrame({"name": [one, other]}).select(normalize_kernel_names_expr(pl.col("name")))["name"]
    assert both.n_unique() == 1


def test_names_that_only_look_alike() -> None:
    names = ["f<int>(int)", "f<float>(int)", "f<8>(int)", "f<9>(int)", "f<8>(long)", "g<8>(int)", "f"]
    assert pl.DataFrame({"name": names}).select(normalize_kernel_names_expr(pl.col("name")).n_unique()).item() == len(
        names
    )


@pytest.mark.parametrize(
    "spelt",
    [
        {"name": "_Z1afi", "mangled_name": None},
        {"name": "other", "mangled_name": "_Z1afi"},
        {"name": "a", "short_name": None},
        {"name": "void ns::deep::a<(int)8>(float*)"},
    ],
)
def test_any_base_of_names_will_do(spelt: dict[str, Any]) -> None:
    found = join.match_kernels(kernels([Launch()], mangled_name="_Z1afi"), launches([Launch()], **spelt))
    assert found.rows() == [(0, "order")]


def test_a_part_in_the_middle() -> None:
    step = [Launch("a"), Launch("b", 2), Launch("a", 3), Launch("b", 2)]
    in_steps = [k._replace(path=f"step {i}") for i in range(4) for k in step]
    before, after = (3, 2, 1, 4, 3), (1, 0, 3, 2, 1, 4)
    assert joined(in_steps, in_steps[5:10]) == [
        *((i, "shape") for i in before),
        *((i, "range") for i in range(5)),
        *((i, "shape") for i in after),
    ]


def test_without_ranges_the_first_place_counts() -> None:
    step = [Launch("a"), Launch("b")]
    assert joined(step * 3, step) == [(0, "order"), (1, "order"), *[(0, "shape"), (1, "shape")] * 2]


def test_ranges_that_differ_are_found_by_order() -> None:
    launched = [Launch("a", 1, "x 1"), Launch("a", 1, "x 2")]
    assert joined(launched, [Launch("a", 1, "x 8"), Launch("a", 1, "x 2")]) == [(0, "order"), (1, "range")]


def test_other_sizes_and_other_kernels_get_nothing() -> None:
    launched = [Launch("a"), Launch("a", 2), Launch("c")]
    assert joined(launched, [Launch("a"), Launch("z")]) == [(0, "order"), (None, None), (None, None)]


def test_processes_and_devices_are_apart() -> None:
    launched = [Launch(device=d, process=p) for p in (1, 2) for d in (0, 1)]
    profiled = [Launch(device=d, process=p) for d in (1, 0) for p in (2, 1)]
    found = joined(launched, profiled)
    assert [i for i, _ in found] == [profiled.index(k) for k in launched]
    assert {way for _, way in found} == {"order"}
    assert joined(launched[:1], [Launch(device=1)]) == [(None, None)]
    assert joined(launched[:1], [Launch(device=1)], device_id=None) == [(0, "order")]


def test_ranges_and_graphs_are_of_no_kernel() -> None:
    assert joined([Launch()], [Launch()], kind="graph") == [(None, None)]
    assert joined([Launch()], []) == [(None, None)]
    assert joined([], [Launch()]) == []


def test_what_is_counted() -> None:
    found = join.match_kernels(
        kernels([Launch(), Launch(), Launch("c")]), launches([Launch(), Launch("z"), Launch("z")])
    )
    counted = join.count_matches_by_kind(found, pl.DataFrame({"launch_id": [0, 1, 2]}))
    assert counted.rows() == [("order", 1, 1 / 3, 1), ("shape", 1, 1 / 3, 1), (None, 1, 1 / 3, 2)]
    assert join.count_matches_by_kind(None, None).height == 0


LAUNCHES = st.lists(
    st.builds(
        Launch,
        st.sampled_from("ab"),
        st.integers(1, 2),
        st.sampled_from([None, "x", "y/z"]),
        device=st.just(0),
        process=st.just(7),
    ),
    min_size=1,
    max_size=12,
)


def check(launched: list[Launch], profiled: list[Launch], found: list[tuple[int | None, str | None]]) -> None:
    """What holds of every answer."""
    known = {k[:2] for k in profiled}
    for kernel, (number, way) in zip(launched, found, strict=True):
        assert (number is None) == (way is None) == (kernel[:2] not in known)
        if number is not None:
            assert profiled[number][:2] == kernel[:2]
            assert way != "range" or profiled[number].path == kernel.path is not None
    paired = [number for number, way in found if way in ("range", "order")]
    assert sorted(paired) == list(range(len(profiled)))  # type: ignore[type-var]


@given(LAUNCHES, st.integers(0, 11), st.integers(1, 12), st.sampled_from(["ab", "a", "b"]))
def test_a_part_of_the_launches_is_found_whole(launched: list[Launch], skip: int, count: int, names: str) -> None:
    profiled = [k for k in launched if k.name in names][skip : skip + count]
    found = joined(launched, profiled)
    check(launched, profiled, found)
    in_order = [number for number, way in found if way in ("range", "order")]
    assert in_order == list(range(len(profiled)))
    assert [way for _, way in found].count("range") == sum(k.path is not None for k in profiled)


@given(LAUNCHES.flatmap(lambda k: st.tuples(st.just(k), st.permutations(k))))
def test_in_any_order_all_are_found_by_ranges_and_turn(both: tuple[list[Launch], list[Launch]]) -> None:
    launched, profiled = both
    found = joined(launched, profiled)
    check(launched, profiled, found)
    for kernel, (number, way) in zip(launched, found, strict=True):
        if kernel.path is not None and launched != profiled:
            assert way == "range"
            assert profiled[number] == kernel  # type: ignore[index]


@given(st.lists(st.integers(-1, 2), max_size=30), st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_occurrences(codes: list[int], wanted: list[int]) -> None:
    found = join._find_sequence_positions(np.array(codes, np.int64), np.array(wanted, np.int64))
    length = len(wanted)
    assert found.tolist() == [i for i in range(len(codes) - length + 1) if codes[i : i + length] == wanted]
