"""When the expert systems speak, and when they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
import tracekit as tk
from tests.builders.frames import declared, launches, nvtx
from tests.conftest import FIXTURES
from tracekit.core.advise import advise
from tracekit.core.dlprof import build_tables, build_tables_in_background
from tracekit.core.rollup import Rollup
from tracekit.plan import get_rollup
from tracekit.system import memory

if TYPE_CHECKING:
    from tracekit.core.tensor_cores import Mode

BACKWARD = "{'mod': 'torch', 'op': 'backward', 'args': []}"
LINEAR = "{'mod': 'torch', 'op': 'linear', 'args': []}"


def findings(lengths: list[int], *more: str) -> dict[str, tuple[str, str]]:
    """Problem and arguments by finding, of a program with steps of some lengths."""
    ranges, start = [(text, 1, 0, 1) for text in more], 10
    for length in lengths:
        ranges += [(LINEAR, 1, start, start + length // 2), (BACKWARD, 1, start + length // 2, start + length)]
        start += length
    made = build_tables(Rollup.from_frames(declared(nvtx_ranges=nvtx(*ranges)), dialect="pyprof"))[
        "expert_systems_feedback"
    ]
    return {row[1].split("\n")[0]: (row[2], row[5]) for row in made.iter_rows()}


def unsteady(lengths: list[int]) -> list[str]:
    return [args for problem, args in findings(lengths).values() if "differ widely in duration" in problem]


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


def said(
    *ranges: tuple[str, int, int, int],
    calls: list[tuple[int, int, int, int]],
    gpus: int = 1,
    mode: Mode = "extended",
) -> dict[str, str]:
    """Recommendations by problem, of ranges (text, thread, start, end) and calls (thread, start, end, device)."""
    devices = pl.DataFrame({"device_id": range(gpus), "name": ["GPU"] * gpus})
    frames = declared(nvtx_ranges=nvtx(*ranges), devices=devices, **launches(*calls))
    return dict(
        build_tables(Rollup.from_frames(frames, dialect="pyprof", tensor_cores=mode))["expert_systems_feedback"]
        .select("problem", "recommendation")
        .rows()
    )


def product(kind: str | None) -> str:
    dtype = "" if kind is None else f", 'dtype': '{kind}'"
    tensor = f"{{'name': '', 'type': 'tensor', 'shape': (8, 8){dtype}}}"
    return f"{{'mod': 'torch', 'op': 'mm', 'args': [{tensor}, {tensor}]}}"


@pytest.mark.many(1)
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("float32", "1 op could have used Tensor Cores, but none ran in half precision"),
        (None, "It is unknown whether mixed precision was enabled, because no data type was recorded"),
        ("float16", None),
    ],
)
def test_ops_that_could_use_tensor_cores(kind: str | None, problem: str | None) -> None:
    found = said((product(kind), 1, 0, 50), (BACKWARD, 1, 60, 100), calls=[(1, 10, 20, 0)])
    about = [p for p in found if "half precision" in p or "mixed precision" in p]
    assert about == ([] if problem is None else [problem])


def test_several_ops_that_could_use_tensor_cores() -> None:
    ranges = [(product("float32"), 1, 0, 20), (product("float32").replace("'mm'", "'bmm'"), 1, 30, 50)]
    found = said(*ranges, (BACKWARD, 1, 60, 100), calls=[(1, 10, 20, 0)])
    assert "2 ops could have used Tensor Cores, but none ran in half precision" in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unit", "mode", "advice"),
    [
        (1, "dlprof", "num_workers > 0"),
        (1, "extended", "tracekit why does not predict that a cure of data_loading saves 2% of the time or more."),
        (100_000, "extended", "num_workers=8, pin_memory=True, persistent_workers=True); predicted saving 53%"),
    ],
)
def test_a_program_that_waits_for_its_data(unit: int, mode: Mode, advice: str) -> None:
    loader = "{'mod': 'torch.utils.data', 'op': 'DataLoader', 'args': []}"
    starts = [n * 100 * unit for n in range(4)]
    ranges = [(loader, 1, at, at + 50 * unit) for at in starts]
    ranges += [(BACKWARD, 1, at + 60 * unit, at + 90 * unit) for at in starts]
    calls = [(1, at + 61 * unit, at + 80 * unit, 0) for at in starts]
    settings = '{"model_config": {"num_workers": %d, "pin_memory": %s}}'
    poor = said((settings % (0, "false"), 1, 0, 1), *ranges, calls=calls, mode=mode)
    rich = said((settings % (4, "true"), 1, 0, 1), *ranges, calls=calls, mode=mode)
    ((problem, recommendation),) = [(p, a) for p, a in poor.items() if "was spent loading data" in p]
    assert float(problem.split("%")[0]) > 5
    assert advice in recommendation
    assert problem in rich
    assert mode == "extended" or "pin_memory=True" in recommendation
    assert mode == "extended" or not {"num_workers", "pin_memory"}.intersection(rich[problem].replace("=", " ").split())
    assert [p for p in said(*ranges[4:], calls=calls, mode=mode) if "loading data" in p] == []


@pytest.mark.slow
def test_devices_that_are_used_unevenly_or_not_at_all() -> None:
    ranges = [(LINEAR, 1, 0, 950), (BACKWARD, 1, 950, 1000)]
    even = said(*ranges, calls=[(1, 10, 900, 0), (1, 12, 890, 1)], gpus=2)
    uneven = said(*ranges, calls=[(1, 10, 900, 0), (1, 20, 100, 1)], gpus=2)
    idle = said(*ranges, calls=[(1, 10, 900, 0)], gpus=2)
    assert [p for p in even if "unevenly" in p or "without any work" in p] == []
    assert "GPUs are used unevenly: device 0 for 89.0%, device 1 for 8.0%" in uneven
    assert "GPUs without any activity: 1" in idle
    assert [p for p in said(*ranges, calls=[(1, 10, 900, 0)]) if "GPU" in p] == []


def test_functions_for_debugging() -> None:
    off = said((LINEAR, 1, 0, 100), (BACKWARD, 1, 100, 200), calls=[])
    on = said(
        ('{"model_config": {"detect_anomaly": true}}', 1, 0, 1), (LINEAR, 1, 2, 100), (BACKWARD, 1, 100, 200), calls=[]
    )
    assert [p for p in off if "debugging" in p] == []
    assert len([p for p in on if "debugging" in p]) == 1


@pytest.mark.slow
def test_dali_is_not_recommended_to_who_uses_it() -> None:
    with_dali = said((LINEAR.replace("linear", "DALI"), 1, 0, 2), (BACKWARD, 1, 60, 100), calls=[(1, 10, 20, 0)])
    assert "No DALI op was found" not in with_dali
    assert "No DALI op was found" in said((LINEAR, 1, 0, 50), (BACKWARD, 1, 60, 100), calls=[(1, 10, 20, 0)])


AMP = "aten::_amp_foreach_non_finite_check_and_unscale_, op_id = 9"


def expert(*ranges: tuple[str, int, int, int], names: list[str], gpus: int = 1, mode: str = "extended") -> pl.DataFrame:
    """Findings of a program of PyTorch's own ranges, each with one kernel of some name."""
    calls = [(thread, start + 1, end - 1, 0) for _, thread, start, end in ranges]
    devices = pl.DataFrame({"device_id": range(gpus), "name": ["GPU"] * gpus})
    made = launches(*calls)
    made["kernels"] = made["kernels"].with_columns(name=pl.Series(names), short_name=pl.Series(names))
    frames = declared(nvtx_ranges=nvtx(*ranges), devices=devices, **made)
    return build_tables(Rollup.from_frames(frames, tensor_cores=mode))["expert_systems_feedback"]  # type: ignore[arg-type]


def about_precision(found: pl.DataFrame) -> list[str]:
    return found.filter(pl.col("exp_sys_id") == "amp_detector")["problem"].to_list()


def test_mixed_precision_is_known_where_gradients_are_scaled() -> None:
    ranges = [("aten::mm, op_id = 1", 1, 0, 50), (AMP, 1, 60, 100)]
    unknown = ["It is unknown whether mixed precision was enabled, because no data type was recorded"]
    assert about_precision(expert(*ranges, names=["gemm", "scale"])) == []
    assert about_precision(expert(*ranges[:1], names=["gemm"])) == unknown
    assert about_precision(expert(*ranges, names=["gemm", "scale"], mode="dlprof")) == unknown


def test_ops_that_use_tensor_cores_are_not_bad() -> None:
    ranges = [("aten::mm, op_id = 1", 1, 0, 50), ("aten::bmm, op_id = 1", 1, 60, 100)]
    calls = [(1, 1, 49, 0), (1, 61, 99, 0)]
    made = launches(*calls)
    names = pl.Series(["ampere_s16816gemm_fp16_64x64", "sgemm"])
    made["kernels"] = made["kernels"].with_columns(name=names, short_name=names)
    frames = declared(nvtx_ranges=nvtx(*ranges), **made)
    bad = {
        mode: build_tables(Rollup.from_frames(frames, tensor_cores=mode))["op_nodes"] for mode in ("extended", "dlprof")
    }
    columns = ["using_tc", "is_bad_data_type"]
    assert sorted(bad["extended"].select(columns).rows()) == [(0, 1), (1, 0)]
    assert sorted(bad["dlprof"].select(columns).rows()) == [(0, 1), (1, 1)]


def test_idle_gpus_do_not_hide_that_the_used_one_is_idle() -> None:
    ranges = [("aten::mm, op_id = 1", 1, 0, 50), ("aten::cat, op_id = 2", 1, 60, 500)]
    frames = declared(
        nvtx_ranges=nvtx(*ranges),
        devices=pl.DataFrame({"device_id": [0, 1], "name": ["GPU"] * 2}),
        **launches((1, 1, 40, 0)),
    )
    made = build_tables(Rollup.from_frames(frames))
    as_dlprof = build_tables(Rollup.from_frames(frames, tensor_cores="dlprof"))
    used = 100 * 39 / 500
    assert made["model_summary"]["gpu_utilization"][0] == round(used, 6)
    assert as_dlprof["model_summary"]["gpu_utilization"][0] == round(used / 2, 6)
    problems = ["GPUs without any activity: 1", f"Kernels ran on the GPU for only {used:.1f}% of the time"]
    of_gpus = pl.col("exp_sys_id") == "underutilized_gpu_detector"
    assert made["expert_systems_feedback"].filter(of_gpus)["problem"].to_list() == problems
    assert as_dlprof["expert_systems_feedback"].filter(of_gpus)["problem"].to_list() == problems[:1]


def test_ops_are_not_to_move_to_a_gpu_that_waits_for_launches() -> None:
    ranges = [(f"aten::mm, op_id = {n}", 1, n * 1000, n * 1000 + 900) for n in range(90)]
    calls = launches(*[(1, s + 10, s + 60, 0) for _, _, s, _ in ranges])
    device = pl.DataFrame({"device_id": [0], "name": ["GPU"]})
    frames = declared(nvtx_ranges=nvtx(*ranges), devices=device, **calls)
    for mode, expected in (
        ("extended", "capture the step in a CUDA graph"),
        ("dlprof", "Move ops that run on the CPU"),
    ):
        found = build_tables(Rollup.from_frames(frames, tensor_cores=mode))["expert_systems_feedback"]
        (advice,) = found.filter(pl.col("exp_sys_id") == "underutilized_gpu_detector")["recommendation"]
        assert expected in advice


@pytest.mark.slow
def test_what_advise_finds_is_in_the_database() -> None:
    with tk.load(FIXTURES / "ddp2.nsys-rep") as loaded:
        trace = loaded.rollup(include_warm_up=True)
        rules = trace.report("advise").data.select("rule", "problem").rows()
        found = trace._view.model("dlprof")["expert_systems_feedback"].select("exp_sys_id", "problem").rows()
        as_dlprof = trace.rollup(tensor_cores="dlprof")._view.model("dlprof")["expert_systems_feedback"]
    assert [f for f in found if f in rules] == rules
    assert {"recompilation", "variation"} <= {rule for rule, _ in rules}
    assert set(as_dlprof["exp_sys_id"]) <= {
        "underutilized_gpu_detector",
        "dataloader_detector",
        "amp_detector",
        "imbalanced_gpu_detector",
    }


@pytest.mark.slow
def test_tables_and_findings_are_equal_with_little_memory() -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        rollup = get_rollup(trace._plan)
        expected = build_tables_in_background(rollup)
        expected = {name: expected[name] for name in expected}
    with memory.limit_memory(0), tk.load(FIXTURES / "train_amp.sqlite") as trace:
        tables = build_tables_in_background(get_rollup(trace._plan))
        assert {name: tables[name].equals(table) for name, table in expected.items()} == dict.fromkeys(expected, True)
    assert expected["expert_systems_feedback"].height


def test_a_finding_that_a_detector_made_is_not_made_again() -> None:
    loader = "{'mod': 'torch.utils.data', 'op': 'DataLoader', 'args': []}"
    starts = [n * 10_000_000 for n in range(4)]
    ranges = [(loader, 1, start, start + 5_000_000) for start in starts]
    ranges += [(BACKWARD, 1, start + 6_000_000, start + 9_000_000) for start in starts]
    kernels = [(1, start + 6_100_000, start + 8_000_000, 0) for start in starts]
    frames = declared(nvtx_ranges=nvtx(*ranges), **launches(*kernels))
    rolled = Rollup.from_frames(frames)
    found = build_tables(rolled)["expert_systems_feedback"]["exp_sys_id"].to_list()
    assert "data_loading" in advise(rolled)["rule"]
    assert "data_loading" not in found
    assert found.count("dataloader_detector") == 1
