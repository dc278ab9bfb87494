"""The roofline: held against sums over the printed CSV, against what ncu derives itself, and against brute force."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders import ncu_csv
from tests.builders.ncu_csv import FOLDER
from tracekit import schemas
from tracekit.core.ncu import roofline
from tracekit.errors import MissingTableError

BY_RANGE, RAW = "ncu_roofline_per_nvtx.csv", "ncu_roofline_raw.csv"
PERCENT = ".avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active" + PERCENT
TENSOR_64 = "sm__pipe_tensor_op_dmma_cycles_active" + PERCENT
TIME, BYTES = "gpu__time_duration.sum", "dram__bytes.sum"
BYTES_PEAK, DRAM_CLOCK = "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"
CLOCK = "sm__cycles_elapsed.avg.per_second"
INST = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FMA_PEAK = "sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained"
HALF = "sm__ops_path_tensor_op_hgmma_src_fp16_sparsity_off.sum"
DOUBLE = "sm__ops_path_tensor_src_fp64.sum"
WORTH = {"d": ("fp64", 1, 2), "f": ("fp32", 1, 2), "h": ("fp16", 2, 4)}

Values = dict[str, float]


def of_capture(name: str, rows: str = "launch") -> pl.DataFrame:
    """The roofline of a capture by launch, kernel or range."""
    with tk.load(FOLDER / name) as trace:
        launches, metrics = trace.frame("ncu_launches"), trace.frame("ncu_metrics")
        if rows == "range":
            return roofline.compute_range_roofline(launches, metrics, trace.frame("ncu_nvtx_ranges"))
        return (roofline.compute_launch_roofline if rows == "launch" else roofline.compute_kernel_roofline)(
            launches, metrics
        )


def launches(*rows: dict[str, Any]) -> pl.LazyFrame:
    """Launches that say what matters here."""
    plain = {"kind": "kernel", "invocations": 1, "range_depth": 0, "name": "k", "duration_ns": None}
    declared = schemas.polars_schema(schemas.table("ncu_launches"), ["launch_id", *plain])
    return pl.LazyFrame([{"launch_id": i, **plain, **row} for i, row in enumerate(rows)], declared)


def metrics(*of_launches: Mapping[str, float | None]) -> pl.LazyFrame:
    """Metrics of launches 0, 1, …"""
    long = [{"launch_id": i, "metric": m, "value": v} for i, found in enumerate(of_launches) for m, v in found.items()]
    return pl.LazyFrame(long, schemas.polars_schema(schemas.table("ncu_metrics")))


def ranges(*paths: list[str]) -> pl.LazyFrame:
    """Push/pop ranges around launches 0, 1, …"""
    found = [
        {"launch_id": i, "kind": "push_pop", "depth": depth, "name": name}
        for i, path in enumerate(paths)
        for depth, name in enumerate(path, 1)
    ]
    return pl.LazyFrame(found, schemas.polars_schema(schemas.table("ncu_nvtx_ranges")))


def everything(**changed: float | None) -> dict[str, float | None]:
    """All metrics of a launch of 1000 ns on a GPU whose pipes do 1000 operations a ns, tensor cores 10 000."""
    counts = {INST.format(p + o): 0.0 for p in WORTH for o in ("add", "mul", "fma")}
    peaks = {FMA_PEAK.format(p + "fma"): 1000.0 / w for p, (_, _, w) in WORTH.items()}
    tensor = {HALF: 0.0, f"{HALF}.peak_sustained": 10_000.0}
    dram = {BYTES: 0.0, BYTES_PEAK: 100.0, DRAM_CLOCK: 1e9}
    return {TIME: 1000.0, CLOCK: 1e9, **counts, **peaks, **tensor, **dram, **changed}


def test_a_launch_near_each_limit() -> None:
    cases: list[tuple[dict[str, float | None], str, str | None]] = [
        ({INST.format("ffma"): 400_000.0}, "math-limited", "fp32"),
        ({INST.format("fadd"): 400_000.0, INST.format("fmul"): 400_000.0}, "math-limited", "fp32"),
        ({INST.format("hmul"): 400_000.0}, "math-limited", "fp16"),
        ({INST.format("dfma"): 355_000.0}, "math-limited", "fp64"),
        ({HALF: 8e6}, "math-limited", "tensor"),
        ({BYTES: 80_000.0}, "memory-limited", None),
        ({BYTES: 80_000.0, HALF: 8e6}, "math- and memory-limited", "tensor"),
        ({BYTES: 70_000.0, HALF: 7e6}, "latency-limited", "tensor"),
        ({}, "latency-limited", None),
    ]
    found = roofline.compute_launch_roofline(
        launches(*({} for _ in cases)), metrics(*(everything(**c) for c, _, _ in cases))
    )
    assert found.select("limiter", "pipe").rows() == [(limiter, pipe) for _, limiter, pipe in cases]
    assert found["math_share"].to_list()[:5] == pytest.approx([0.8, 0.8, 0.8, 0.71, 0.8])
    assert found["flop"].to_list() == [8e5, 8e5, 8e5, 7.1e5, 8e6, 0, 8e6, 7e6, 0]
    assert found["flop_per_byte"].to_list() == [None] * 5 + [0, 100, 100, None]
    assert found["peak_bytes_per_s"].unique().to_list() == [pytest.approx(1e11)]
    assert found["peak_flop_per_s"].to_list() == pytest.approx([1e12] * 4 + [1e13, 1e12, 1e13, 1e13, 1e12])
    assert set(found["math_from"]) == {"fp64 fp32 fp16 tensor"}
    assert set(found["memory_from"]) == {"dram__bytes"}


def test_the_program_does_what_it_says() -> None:
    found = {row["name"]: row for row in of_capture(BY_RANGE, "range").iter_rows(named=True)}
    assert len(found) == 14
    for step in ("step 0", "step 1"):
        assert {n.partition("/")[2]: r["limiter"] for n, r in found.items() if n.startswith(f"{step}/")} == {
            **dict.fromkeys(("half", "single", "double"), "math-limited"),
            **dict.fromkeys(("large", "scale"), "memory-limited"),
            "tiny": "latency-limited",
        }
        product = 2 * 4096**3
        assert found[f"{step}/double"]["tensor_flop"] == product
        assert 1 < found[f"{step}/single"]["fp32_flop"] / product < 1.001
        assert 1 < found[f"{step}/half"]["tensor_flop"] / (8 * product) < 1.02
        assert found[f"{step}/half"]["pipe"] == found[f"{step}/double"]["pipe"] == "tensor"
        assert found[f"{step}/large"]["dram_bytes"] == pytest.approx(3 * 4 * 16384**2 * 2 / 3, rel=0.06)
        assert found[step]["limiter"] == "math-limited"
        assert found[step]["launches"] == 6


def test_shares_are_those_that_ncu_derives() -> None:
    found = of_capture(RAW)
    with tk.load(FOLDER / RAW) as trace:
        wide = trace.wide()
    assert found["launch_id"].equals(wide["launch_id"])
    busy = (found["tensor_busy_ns"] / found["time_ns"] * 100).to_list()
    assert busy == pytest.approx((wide[TENSOR] + wide[TENSOR_64]).to_list(), abs=1e-4)
    assert max(busy) > 90
    dram = wide[f"gpu__dram_throughput{PERCENT}"].to_list()
    assert (found["memory_share"] * 100).to_list() == pytest.approx(dram, abs=1e-4)


def printed_by_path() -> dict[str, list[Values]]:
    """Averages times invocations of each row of the summary by NVTX range, by every range around it."""
    groups: dict[tuple[str, ...], Values] = defaultdict(dict)
    for row in ncu_csv.rows(BY_RANGE):
        value = ncu_csv.number(row["Average"], row["Metric Unit"])
        assert value is not None
        key = (row[ncu_csv.RANGES], row["Kernel Name"], row["Grid Size"], row["Invocations"])
        groups[key][row["Metric Name"]] = float(value)
    found: dict[str, list[Values]] = defaultdict(list)
    for (cell, *_, invocations), values in groups.items():
        assert invocations == "1"
        names = [entry.strip(' "').partition(":")[0] for entry in cell.split('"  "')]
        for depth in range(1, len(names) + 1):
            found["/".join(names[:depth])].append(values)
    return found


def test_ranges_are_sums_of_what_is_printed() -> None:
    expected = printed_by_path()
    found = of_capture(BY_RANGE, "range")
    assert sorted(found["name"]) == sorted(expected)
    for row in found.iter_rows(named=True):
        values = expected[row["name"]]
        assert row["time_ns"] == sum(v[TIME] for v in values)
        assert row["dram_bytes"] == sum(v[BYTES] for v in values)
        for letter, (pipe, one, two) in WORTH.items():
            counts = [[v[INST.format(letter + o)] for o in ("add", "mul", "fma")] for v in values]
            assert row[f"{pipe}_flop"] == sum((a + m) * one + f * two for a, m, f in counts)
        tensor = [k for k in values[0] if "ops_path_tensor" in k and k.endswith(".sum")]
        assert row["tensor_flop"] == sum(v[k] for v in values for k in tensor)
        moved = sum(v[BYTES] / (v[BYTES_PEAK] * v[DRAM_CLOCK]) for v in values) * 1e9
        assert row["memory_share"] == pytest.approx(moved / row["time_ns"])
        busy = sum(max(shares(v, tensor)) * v[TIME] for v in values)
        assert row["math_share"] == pytest.approx(busy / row["time_ns"])


def shares(v: Values, tensor: list[str]) -> list[float]:
    """How near each pipe came to its peak."""
    cycles = v[CLOCK] * v[TIME] / 1e9
    found = []
    for letter, (_, one, two) in WORTH.items():
        add, mul, fma = (v[INST.format(letter + o)] for o in ("add", "mul", "fma"))
        found.append(((add + mul) * one + fma * two) / (v[FMA_PEAK.format(letter + "fma")] * two * cycles))
    return [*found, sum(v[k] / (v[f"{k}.peak_sustained"] * cycles) for k in tensor)]


def test_kernels_are_sums_of_their_launches() -> None:
    single, summed = of_capture(RAW), of_capture(RAW, "kernel")
    assert summed["launches"].sum() == single.height == 12
    columns = ["time_ns", "fp32_flop", "tensor_flop", "dram_bytes", "math_busy_ns"]
    expected = single.group_by("name").agg(pl.col(columns).sum()).sort("time_ns", descending=True)
    for column in columns:
        assert summed[column].to_list() == pytest.approx(expected[column].to_list())


@pytest.mark.parametrize("name", ["ncu_details.csv", "ncu_basic.ncu-rep", "ncu_per_kernel.csv"])
def test_throughput_stands_in_and_says_so(name: str) -> None:
    found = of_capture(name)
    with tk.load(FOLDER / name) as trace:
        wide = trace.wide()
    assert set(found["math_from"]) == {"sm__throughput"}
    assert set(found["memory_from"]) == {"gpu__dram_throughput"}
    assert (found["math_share"] * 100).to_list() == pytest.approx(wide[f"sm__throughput{PERCENT}"].to_list())
    high = found["math_share"] > roofline.NEAR_PEAK
    assert set(found.filter(high)["limiter"]) == {"SM-limited"}
    assert "math-limited" not in set(found["limiter"])
    assert found["pipe"].null_count() == found.height


@pytest.mark.parametrize(
    ("caches", "sm", "more", "limiter"),
    [
        (97.5, 20.0, {}, "memory-limited"),
        (69.0, 20.0, {}, "latency-limited"),
        (20.0, 95.0, {}, "SM-limited"),
        (97.5, 95.0, {}, "memory-limited"),
        (97.5, 20.0, {BYTES: 80_000.0}, "memory-limited"),
        (20.0, 95.0, {BYTES: 80_000.0}, "memory-limited"),
        (97.5, 20.0, {HALF: 8e6}, "math- and memory-limited"),
        (20.0, 95.0, {HALF: 8e6}, "math-limited"),
    ],
)
def test_a_kernel_that_uses_the_caches_is_not_limited_by_latency(
    caches: float, sm: float, more: dict[str, float | None], limiter: str
) -> None:
    """A kernel that reads from L1 and L2 barely uses DRAM, but its memory throughput is near the peak."""
    throughputs = {f"gpu__compute_memory_throughput{PERCENT}": caches, f"sm__throughput{PERCENT}": sm}
    found = roofline.compute_launch_roofline(launches({}), metrics(everything(**throughputs, **more)))
    assert found["limiter"].to_list() == [limiter]
    assert found["memory_throughput_share"].to_list() == pytest.approx([caches / 100])
    assert found["memory_from"].to_list() == ["dram__bytes"]


def test_memory_of_all_levels_is_the_last_resort() -> None:
    given_ = {TIME: 10.0, f"gpu__compute_memory_throughput{PERCENT}": 80.0, f"sm__throughput{PERCENT}": 90.0}
    found = roofline.compute_launch_roofline(launches({}), metrics(given_))
    assert found.select("memory_share", "memory_from", "limiter").rows() == [
        (0.8, "gpu__compute_memory_throughput", "SM- and memory-limited")
    ]


def test_what_is_missing_is_null() -> None:
    found = of_capture("ncu_per_nvtx.csv")
    assert found["dram_bytes"].null_count() == 0
    unknown = ["time_ns", "fp32_flop", "flop_per_byte", "math_share", "memory_share", "math_from", "limiter"]
    assert [found[c].null_count() for c in unknown] == [found.height] * len(unknown)


def test_one_launch_that_lacks_a_metric_leaves_the_sum_unknown() -> None:
    lacking = {k: v for k, v in everything(**{HALF: 5.0}).items() if k != INST.format("fadd")}
    found = roofline.compute_kernel_roofline(
        launches({}, {}, {"name": "other"}), metrics(everything(), lacking, everything())
    )
    assert found.select("name", "fp32_flop", "fp64_flop", "tensor_flop", "math_share", "math_from").rows() == [
        ("k", None, 0.0, 5.0, None, None),
        ("other", 0.0, 0.0, 0.0, 0.0, "fp64 fp32 fp16 tensor"),
    ]


def test_operations_of_busy_tensor_cores_that_are_not_counted_leave_the_total_unknown() -> None:
    plain = {k: v for k, v in everything(**{INST.format("ffma"): 10.0}).items() if "ops_path" not in k}
    found = roofline.compute_launch_roofline(
        launches({}, {}, {}), metrics({**plain, TENSOR: 75.0}, {**plain, TENSOR: 0.0}, plain)
    )
    assert found.select("flop", "tensor_flop", "math_share", "pipe", "limiter", "math_from").rows() == [
        (None, None, 0.75, "tensor", "math-limited", "fp64 fp32 fp16 tensor"),
        (20.0, 0.0, pytest.approx(2e-05), "fp32", "latency-limited", "fp64 fp32 fp16 tensor"),
        (20.0, None, pytest.approx(2e-05), "fp32", "latency-limited", "fp64 fp32 fp16"),
    ]


def test_rates_give_counts() -> None:
    by_cycle = everything()
    for name in [n for n in by_cycle if n.startswith("smsp__sass")]:
        by_cycle[f"{name}.per_cycle_elapsed"] = by_cycle.pop(name)
    by_cycle[INST.format("ffma") + ".per_cycle_elapsed"] = 400.0
    by_cycle[f"{BYTES}.per_second"] = 8e10
    del by_cycle[BYTES]
    read_and_written = everything(**{"dram__bytes_read.sum": 30_000.0, "dram__bytes_write.sum": 50_000.0})
    del read_and_written[BYTES]
    found = roofline.compute_launch_roofline(launches({}, {}), metrics(by_cycle, read_and_written))
    assert found["fp32_flop"].to_list() == pytest.approx([800_000, 0])
    assert found["dram_bytes"].to_list() == pytest.approx([80_000, 80_000])
    assert found["limiter"].to_list() == ["math- and memory-limited", "memory-limited"]


def test_tensor_operations_are_counted_once() -> None:
    prefix = "sm__ops_path_tensor_"
    counted = {
        f"{prefix}src_fp16.sum": 7.0,  # all of the next three
        f"{prefix}op_hmma_src_fp16.sum": 4.0,  # both of the next two
        f"{prefix}op_hmma_src_fp16_sparsity_on.sum": 1.0,
        f"{prefix}op_hmma_src_fp16_sparsity_off.sum": 3.0,
        f"{prefix}op_hgmma_src_fp16.sum": 3.0,
        f"{prefix}src_int8.sum": 20.0,
        f"{prefix}src_int8_sparsity_off.sum": 20.0,
    }
    found = roofline.compute_launch_roofline(launches({}), metrics(counted))
    assert found["tensor_flop"].to_list() == [27.0]


def test_nothing_to_tell_is_an_error_that_says_what_to_collect() -> None:
    with pytest.raises(MissingTableError) as e:
        roofline.compute_kernel_roofline(launches({}, {}), metrics({TIME: 5.0}, {"launch__grid_size": 1.0}))
    assert str(e.value).startswith(
        "2 launches have none of the metrics that a roofline needs\nHint: collect them with ncu --set roofline"
    )
    assert "--section SpeedOfLight" in str(e.value)


def test_no_launches_no_rows() -> None:
    assert roofline.compute_launch_roofline(launches(), metrics()).height == 0
    assert roofline.compute_kernel_roofline(launches(), metrics()).height == 0
    assert roofline.compute_range_roofline(launches(), metrics(), ranges()).height == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e300])
def test_numbers_that_cannot_be_are_unknown(value: float) -> None:
    found = roofline.compute_launch_roofline(launches({}, {}), metrics(everything(**{BYTES: value}), everything()))
    assert found["dram_bytes"].to_list() == [None, 0.0]
    assert found["memory_share"].to_list() == [None, 0.0]


def test_groups_count_for_their_launches_and_only_where_there_are_no_single_ones() -> None:
    group = {"kind": "group", "invocations": 3}
    found = roofline.compute_kernel_roofline(launches(group), metrics(everything(**{BYTES: 10.0})))
    assert found.select("launches", "time_ns", "dram_bytes").rows() == [(3, 3000.0, 30.0)]
    both = roofline.compute_kernel_roofline(launches(group, {}), metrics(everything(), everything()))
    assert both["launches"].to_list() == [1]
    two_summaries = launches(group, {**group, "range_depth": 1})
    by_name = roofline.compute_kernel_roofline(two_summaries, metrics(everything(), everything()))
    assert by_name["launch_id"].to_list() == [0]
    in_ranges = roofline.compute_range_roofline(two_summaries, metrics(everything(), everything()), ranges([], ["a"]))
    assert in_ranges.select("launch_id", "name").rows() == [(1, "a")]


def test_launches_outside_all_ranges_have_a_row_without_name() -> None:
    found = roofline.compute_range_roofline(
        launches({}, {}), metrics(everything(), everything()), ranges([], ["a", "ü/b", ""])
    )
    assert found.select("name", "launches").sort("name", nulls_last=False).rows() == [
        (None, 1),
        ("a", 1),
        ("a/ü/b", 1),
        ("a/ü/b/", 1),
    ]


def test_very_deep_ranges_count_for_those_around_them() -> None:
    found = roofline.compute_range_roofline(launches({}), metrics(everything()), ranges(["r"] * 5000))
    assert found.height == roofline.MAX_RANGE_DEPTH
    assert found["name"].cast(pl.String).str.len_bytes().max() == 2 * roofline.MAX_RANGE_DEPTH - 1


LAUNCH = st.fixed_dictionaries(
    {
        "name": st.sampled_from("ab"),
        "path": st.lists(st.sampled_from(["x", "y/", "é"]), max_size=3),
        "bytes": st.none() | st.integers(0, 100_000),
        "ffma": st.none() | st.integers(0, 500_000),
        "half": st.none() | st.integers(0, 10_000_000),
    }
)


def total(values: list[float | None]) -> float | None:
    return None if None in values else sum(v for v in values if v is not None)


@given(st.lists(LAUNCH, min_size=1, max_size=8))
def test_sums_equal_brute_force(given_: list[dict[str, Any]]) -> None:
    found = metrics(
        *(everything(**{BYTES: g["bytes"], INST.format("ffma"): g["ffma"], HALF: g["half"]}) for g in given_)
    )
    own = launches(*({"name": g["name"], "range_depth": len(g["path"])} for g in given_))
    paths: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    for g in given_:
        for depth in range(1, len(g["path"]) + 1):
            paths["/".join(g["path"][:depth])].append(g)
        if not g["path"]:
            paths[None].append(g)
    names = {n: [g for g in given_ if g["name"] == n] for n in {g["name"] for g in given_}}
    inside = roofline.compute_range_roofline(own, found, ranges(*(g["path"] for g in given_)))
    for made, expected in ((inside, paths), (roofline.compute_kernel_roofline(own, found), names)):
        assert sorted(made["name"].cast(pl.String), key=str) == sorted(expected, key=str)
        for row in made.iter_rows(named=True):
            members = expected[row["name"]]
            assert row["launches"] == len(members)
            assert row["dram_bytes"] == total([m["bytes"] for m in members])
            assert row["tensor_flop"] == total([m["half"] for m in members])
            assert row["fp32_flop"] == total([None if m["ffma"] is None else 2 * m["ffma"] for m in members])
            busy = [None if m["ffma"] is None else max(m["ffma"] * 2 / 1e6, (m["half"] or 0) / 1e7) for m in members]
            share = total(busy)
            assert row["math_share"] == (None if share is None else pytest.approx(share / len(members)))
