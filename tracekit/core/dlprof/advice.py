"""The findings of DLProf's expert systems: its rules and numbers, in our words.

Unless in DLProf's mode, rules also look at what DLProf did not know, and the findings of ``advise`` come after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.core import intervals
from tracekit.core.advise import Scene, advise, host
from tracekit.core.rollup import breakdown
from tracekit.core.rollup.breakdown import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracekit.core.dlprof.model import Model

PYTORCH = ("pyprof", "emit-nvtx")
_BUSY_PERCENT, _IMBALANCE_POINTS, _LOADER_PERCENT, _VARIATION = 50, 10, 5, 0.25
_STEADY_RUN = 7
_HOST_PARTS = {
    "memory": ("Copying and setting memory", "Look for copies that can be left out, or overlapped with kernels."),
    "dataloader": ("The data loader", "Speed up the input pipeline: the GPU waits for data."),
    "io": ("Reading and writing files", "Speed up the input pipeline: the GPU waits for files."),
    "cpu": ("Work on the CPU", "Move ops that run on the CPU to the GPU."),
    "other": ("Time outside of ops", "Look for what the framework and the system do meanwhile."),
}
_DEBUGGING = {
    "detect_anomaly": "the context manager detect_anomaly",
    "gradcheck": "gradcheck",
    "gradgradcheck": "gradgradcheck",
    "autograd_profile": "autograd.profiler.profile",
    "autograd_set_detect_anomaly": "autograd.set_detect_anomaly",
}
_ALIKE = {
    "data_loading": "dataloader_detector",
    "imbalance": "imbalanced_gpu_detector",
    "variation": "bad_iteration_range_detector",
}
"""Detectors that find the same as a rule of ``advise``."""

NO_DALI = "No op of DALI was found"
_DALI = "NVIDIA DALI loads and augments data on the GPU: https://developer.nvidia.com/DALI"


class Finding(NamedTuple):
    """One row of ``expert_systems_feedback``."""

    system: str
    problem: str
    recommendation: str
    function: str = ""
    arguments: str = ""


def findings(model: Model) -> list[Finding]:
    """Run all detectors, in DLProf's order; those that find nothing give nothing."""
    found = [f for detect in _DETECTORS for f in detect(model)]
    return found if _as_dlprof(model) else [*found, *_advised(model, {f.system for f in found if f.problem != NO_DALI})]


def _as_dlprof(model: Model) -> bool:
    return model.rollup.measures.mode == "dlprof"


def _advised(model: Model, spoken: set[str]) -> Iterator[Finding]:
    """Turn the findings of ``advise`` into rows, but for those of which a detector has spoken."""
    rows = advise(model.rollup).select("rule", "problem", "evidence", "advice").iter_rows()
    for rule, problem, evidence, told in rows:
        if _ALIKE.get(rule) not in spoken:
            yield Finding(rule, problem, f"{evidence}. {told}")


def number(settings: Mapping[str, Any], name: str) -> int:
    """Return a setting as a number; 0 if it is none."""
    value = settings.get(name, 0)
    return int(value) if isinstance(value, int | float) and abs(value) < 1 << 31 else 0


def _settings(model: Model) -> Mapping[str, Any]:
    return model.rollup.measures.ops.timeline.config


def _is_pytorch(model: Model) -> bool:
    return model.rollup.measures.ops.dialect.name in PYTORCH


def _amp(model: Model) -> Iterator[Finding]:
    ops = model.rollup.ops
    could = ops.filter(pl.col("eligible") & (pl.col("count") > 0))
    bad = int(ops["bad_type"].sum())
    if not _is_pytorch(model) or _settings(model).get("amp_enabled") or not bad or could["half"].any():
        return
    types = could["data_type"].cast(pl.String).fill_null("")
    unknown = bool((types == "").all())
    if not _as_dlprof(model) and (_used_amp(ops) or (unknown and could["uses_tc"].any())):
        return
    if unknown:
        said = "Whether mixed precision was enabled is not known: no data type was recorded"
        yield Finding("amp_detector", said, "If it was not, try automatic mixed precision (AMP).", "ShowBadDataTypeOps")
        return
    ops_could = "1 op" if bad == 1 else f"{bad} ops"
    said = f"{ops_could} could have used Tensor Cores, and none computed in half precision"
    yield Finding("amp_detector", said, "Try automatic mixed precision (AMP).", "ShowBadDataTypeOps")


def _used_amp(ops: pl.DataFrame) -> bool:
    """Tell whether ops ran that only automatic mixed precision runs: those that scale gradients."""
    return bool(ops.filter(pl.col("count") > 0)["op_name"].cast(pl.String).str.contains("_amp_", literal=True).any())


def _imbalanced(model: Model) -> Iterator[Finding]:
    found = model.device_utilization
    if len(found) < 2 or not all(found.values()):  # noqa: PLR2004 - one cannot be imbalanced
        return
    most, least = max(found, key=lambda d: found[d]), min(found, key=lambda d: found[d])
    if found[most] - found[least] > _IMBALANCE_POINTS:
        said = f"GPUs are used unevenly: device {most} for {found[most]:.1f}%, device {least} for {found[least]:.1f}%"
        yield Finding("imbalanced_gpu_detector", said, "Divide the work evenly between the GPUs.")


def _underutilized(model: Model) -> Iterator[Finding]:
    found = model.device_utilization
    unused = [str(d) for d, v in found.items() if not v]
    if unused:
        said = f"GPUs without any work: {' '.join(unused)}"
        yield Finding("underutilized_gpu_detector", said, "Let program, framework and container use every GPU.")
    all_idle = len(unused) == len(found)
    if not (unused if _as_dlprof(model) else all_idle) and model.gpu_utilization < _BUSY_PERCENT:
        most = max(PARTS[2:], key=lambda p: model.percentages[p])
        name, advice = _HOST_PARTS[most]
        if most == "cpu" and not _as_dlprof(model):
            advice = _cpu_advice(model)
        said = f"Kernels ran on the GPU for only {model.gpu_utilization:.1f}% of the time"
        told = f"{name} took most of the rest, {model.percentages[most]:.1f}%. {advice}"
        yield Finding("underutilized_gpu_detector", said, told)


def _cpu_advice(model: Model) -> str:
    """Say what to do about work on the CPU: most programs wait for launches, not for ops to move to the GPU."""
    scene = Scene(model.rollup)
    cpu_ns = scene.spent["cpu"].max()
    return host.cpu_advice(scene, cpu_ns if isinstance(cpu_ns, int) else 0, scene.launches.height)


def _dataloader(model: Model) -> Iterator[Finding]:
    loads = breakdown.loads(model.rollup.measures).gather(model.rollup.instances["op"])
    has_dali = bool((model.rollup.ops["op_type"].cast(pl.String) == "DALI").any())
    loading = model.rollup.instances.filter(loads).select("start_ns", "end_ns")
    share = model.percent(_alone(loading, model)) if loading.height else 0.0
    if share > _LOADER_PERCENT:
        told = ["The GPU waits for data: look at reading, preprocessing and copying."]
        if not _settings(model).get("num_workers", 0):
            told.append("Give the data loader num_workers > 0, so that it works ahead.")
        if not _settings(model).get("pin_memory", True):
            told.append("Give the data loader pin_memory=True, so that copies are faster.")
        ends = "\n".join([*told, "" if has_dali else _DALI])
        yield Finding("dataloader_detector", f"{share:.1f}% of the time went to loading data while no GPU worked", ends)
    elif not has_dali:
        yield Finding("dataloader_detector", NO_DALI, _DALI)


def _alone(loading: pl.DataFrame, model: Model) -> int:
    """Measure how long data was loaded while no aggregated instance ran anything on any device, in ns."""
    rollup = model.rollup
    active = rollup.iteration.gather(rollup.measures.gpu_work["instance"]).is_not_null()
    work = rollup.measures.gpu_work.filter(active).select("start_ns", "end_ns")
    both = intervals.overlap(loading, work, by=[]) if work.height else work
    shared = int(both.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0)
    return int(intervals.union_length(loading, by=[]).item() or 0) - shared


def _unsteady(model: Model) -> Iterator[Finding]:
    mean, deviation = model.iteration_ns
    lengths = model.lengths
    if len(lengths) < 2 or not mean or deviation / mean <= _VARIATION:  # noqa: PLR2004 - one cannot vary
        return
    start, stop = _longest_steady(lengths)
    run = lengths[start:stop]
    if len(run) < _STEADY_RUN or _variation(run) > _VARIATION:
        return
    its = model.rollup.iterations
    first, last = its.first + start, its.first + stop - 1
    said = f"The iterations {its.first} to {its.last} differ much in length"
    told = f"Those from {first} to {last} are steady: aggregate them alone, with --iterations {first}:{last}."
    ideal = f'{{"ideal_start":"{first}","ideal_stop":"{last}"}}\n'
    yield Finding("bad_iteration_range_detector", said, told, "ShowBadIterationRange", ideal)


def _variation(lengths: list[int]) -> float:
    mean = sum(lengths) / len(lengths)
    return float((sum((n - mean) ** 2 for n in lengths) / len(lengths)) ** 0.5 / mean)


def _longest_steady(lengths: list[int]) -> tuple[int, int]:
    """Find the longest run of iterations whose length is no outlier, the first of several."""
    ordered = sorted(lengths)
    low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    fence = 1.5 * (high - low)
    frame = pl.DataFrame({"steady": [low - fence <= n <= high + fence for n in lengths]}).with_row_index("at")
    runs = frame.with_columns(run=pl.col("steady").rle_id()).filter("steady").group_by("run").agg(
        start=pl.col("at").min(), count=pl.len()
    )  # fmt: skip
    start, count = runs.sort("count", "start", descending=[True, False]).select("start", "count").row(0)
    return int(start), int(start + count)


def _no_iterations(model: Model) -> Iterator[Finding]:
    its = model.rollup.iterations
    if not its.found:
        said = f"There is one iteration only: no key op {its.key} was found"
        yield Finding("no_iterations_detector", said, "Name an op that ends each iteration, with --key-op.")


def _cudnn(model: Model) -> Iterator[Finding]:
    if _settings(model).get("cudnn_benchmark_disabled"):
        said = "Convolutions ran without torch.backends.cudnn.benchmark"
        told = "Set torch.backends.cudnn.benchmark = True, if input shapes change little."
        yield Finding("cudnn_benchmark_detector", said, told)


def _slow(model: Model) -> Iterator[Finding]:
    on = [what for name, what in _DEBUGGING.items() if _settings(model).get(name)]
    if on:
        told = "".join(f"Use {what} for debugging only.\n" for what in on)
        yield Finding("slow_api_detector", "Functions meant for debugging were on, which take time", told)


def _emit_nvtx(model: Model) -> Iterator[Finding]:
    if model.rollup.measures.ops.dialect.name == "pyprof" and not _settings(model).get("emit_nvtx"):
        said = "The ranges of torch.autograd.profiler.emit_nvtx were not found"
        told = "Run the loop inside emit_nvtx(), so that kernels of the backward pass are given to their ops."
        yield Finding("emit_nvtx_detector", said, told)


_DETECTORS: tuple[Callable[[Model], Iterator[Finding]], ...] = (
    *(_amp, _imbalanced, _underutilized, _dataloader, _unsteady, _no_iterations),
    *(_cudnn, _slow, _emit_nvtx),
)
