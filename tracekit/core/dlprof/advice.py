"""Find the problems that DLProf's expert systems report, with DLProf's rules and thresholds.

The wording of the findings differs from DLProf's. Unless the mode of the roll-up is ``dlprof``, the rules also use
information that DLProf does not have, what they recommend is what ``why`` predicts to save time, and the findings of
``advise`` are added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tracekit.core import intervals
from tracekit.core.advise import advise, explain
from tracekit.core.diagnosis.answer import MIN_SAVING
from tracekit.core.rollup import measures
from tracekit.core.rollup.measures import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tracekit.core.dlprof.model import ModelSummary

PYTORCH = ("pyprof", "emit-nvtx")
_BUSY_PERCENT, _IMBALANCE_POINTS, _LOADER_PERCENT, _MAX_VARIATION = 50, 10, 5, 0.25
_MIN_STEADY_RUN = 7
_HOST_PARTS = {
    "memory": ("Copying and setting memory", "Look for copies that can be avoided or overlapped with kernels."),
    "dataloader": ("The data loader", "Speed up the input pipeline: the GPU waits for data."),
    "io": ("Reading and writing files", "Speed up the input pipeline: the GPU waits for files."),
    "cpu": ("Work on the CPU", "Move ops that run on the CPU to the GPU."),
    "other": ("Time outside of ops", "Find out what the framework and the system do in this time."),
}
_DEBUGGING = {
    "detect_anomaly": "the context manager detect_anomaly",
    "gradcheck": "gradcheck",
    "gradgradcheck": "gradgradcheck",
    "autograd_profile": "autograd.profiler.profile",
    "autograd_set_detect_anomaly": "autograd.set_detect_anomaly",
}
_DETECTOR_OF_RULE = {
    "data_loading": "dataloader_detector",
    "precision": "amp_detector",
    "imbalance": "imbalanced_gpu_detector",
    "variation": "bad_iteration_range_detector",
}
"""Maps each rule of ``advise`` to the detector that reports the same problem."""

NO_DALI = "No DALI op was found"
_DALI = "NVIDIA DALI loads and augments data on the GPU: https://developer.nvidia.com/DALI"


class ExpertFinding(NamedTuple):
    """A problem that a detector or a rule of ``advise`` reports: one row of the table ``expert_systems_feedback``."""

    system: str
    problem: str
    recommendation: str
    function: str = ""
    arguments: str = ""


def compute_findings(model: ModelSummary) -> list[ExpertFinding]:
    """Return the findings of DLProf's detectors, in the order in which DLProf reports them.

    Unless the mode of the roll-up is ``dlprof``, the findings of ``advise`` follow.
    """
    rows = [f for detect in _DETECTORS for f in detect(model)]
    if _is_dlprof_mode(model):
        return rows
    return [*rows, *_iterate_advise_findings(model, {f.system for f in rows if f.problem != NO_DALI})]


def _is_dlprof_mode(model: ModelSummary) -> bool:
    return model.rollup.measures.mode == "dlprof"


def _iterate_advise_findings(model: ModelSummary, reporting_detectors: set[str]) -> Iterator[ExpertFinding]:
    """Yield the findings of ``advise`` about problems that no detector has reported.

    Args:
        model: Statistics of the whole model.
        reporting_detectors: Names of the detectors that have reported a problem.
    """
    rows = advise(model.rollup).select("rule", "problem", "evidence", "advice").iter_rows()
    for rule, problem, evidence, recommendation in rows:
        if _DETECTOR_OF_RULE.get(rule) not in reporting_detectors:
            yield ExpertFinding(rule, problem, f"{evidence}. {recommendation}")


def _recommend(model: ModelSummary, cause: str, advice: str) -> str:
    """Return what DLProf advises in its mode, and otherwise the change that ``why`` predicts to save time."""
    if _is_dlprof_mode(model):
        return advice
    listed = next((c for c in explain(model.rollup).causes if c.cause == cause), None)
    if listed is None:
        return f"tracekit why does not predict that a cure of {cause} saves {MIN_SAVING:.0%} of the time or more."
    saving = listed.saving
    return f"{listed.change}; predicted saving {saving.likely:.0%} ({saving.low:.0%} to {saving.high:.0%})."


def read_integer_setting(settings: Mapping[str, Any], name: str) -> int:
    """Return a setting of the profiled program as an integer.

    The result is 0 if the setting is missing, is not a number, or does not fit into 32 bits.
    """
    value = settings.get(name, 0)
    return int(value) if isinstance(value, int | float) and abs(value) < 1 << 31 else 0


def _read_program_settings(model: ModelSummary) -> Mapping[str, Any]:
    return model.rollup.measures.ops.timeline.config


def _is_pytorch(model: ModelSummary) -> bool:
    return model.rollup.measures.ops.dialect.name in PYTORCH


def _detect_missing_amp(model: ModelSummary) -> Iterator[ExpertFinding]:
    ops = model.rollup.ops
    eligible = ops.filter(pl.col("eligible") & (pl.col("count") > 0))
    bad = int(ops["bad_type"].sum())
    if not _is_pytorch(model) or _read_program_settings(model).get("amp_enabled") or not bad or eligible["half"].any():
        return
    types = eligible["data_type"].unique().cast(pl.String).fill_null("")
    unknown = bool((types == "").all())
    if not _is_dlprof_mode(model) and (_has_amp_ops(ops) or (unknown and eligible["uses_tc"].any())):
        return
    if unknown:
        problem = "It is unknown whether mixed precision was enabled, because no data type was recorded"
        advice = _recommend(model, "precision", "If it was not enabled, try automatic mixed precision (AMP).")
        yield ExpertFinding("amp_detector", problem, advice, "ShowBadDataTypeOps")
        return
    bad_ops = "1 op" if bad == 1 else f"{bad} ops"
    problem = f"{bad_ops} could have used Tensor Cores, but none ran in half precision"
    advice = _recommend(model, "precision", "Try automatic mixed precision (AMP).")
    yield ExpertFinding("amp_detector", problem, advice, "ShowBadDataTypeOps")


def _has_amp_ops(ops: pl.DataFrame) -> bool:
    """Return whether the program ran an op that only automatic mixed precision (AMP) uses, such as gradient scaling."""
    names = ops.filter(pl.col("count") > 0)["op_name"].unique().cast(pl.String)
    return bool(names.str.contains("_amp_", literal=True).any())


def _detect_imbalanced_gpus(model: ModelSummary) -> Iterator[ExpertFinding]:
    used = model.device_utilization
    if len(used) < 2 or not all(used.values()):  # noqa: PLR2004 - a single GPU cannot be imbalanced
        return
    most, least = max(used, key=lambda d: used[d]), min(used, key=lambda d: used[d])
    if used[most] - used[least] > _IMBALANCE_POINTS:
        problem = f"GPUs are used unevenly: device {most} for {used[most]:.1f}%, device {least} for {used[least]:.1f}%"
        yield ExpertFinding("imbalanced_gpu_detector", problem, "Divide the work evenly between the GPUs.")


def _detect_underutilized_gpus(model: ModelSummary) -> Iterator[ExpertFinding]:
    used = model.device_utilization
    unused = [str(d) for d, v in used.items() if not v]
    if unused:
        problem = f"GPUs without any activity: {' '.join(unused)}"
        yield ExpertFinding(
            "underutilized_gpu_detector", problem, "Make sure that program, framework and container can use every GPU."
        )
    all_idle = len(unused) == len(used)
    # DLProf does not report low utilization if it reports unused GPUs.
    if not (unused if _is_dlprof_mode(model) else all_idle) and model.gpu_utilization < _BUSY_PERCENT:
        problem = f"Kernels ran on the GPU for only {model.gpu_utilization:.1f}% of the time"
        yield ExpertFinding("underutilized_gpu_detector", problem, _explain_idle_gpu(model))


def _explain_idle_gpu(model: ModelSummary) -> str:
    """Return what took most of the time without kernels in DLProf's mode, and otherwise the answer of ``why``."""
    if not _is_dlprof_mode(model):
        answer = explain(model.rollup)
        change = answer.causes[0].change if answer.causes else ""
        return f"{answer.sentence} To change: {change}." if change else answer.sentence
    most = max(PARTS[2:], key=lambda p: model.part_percentages[p])
    name, advice = _HOST_PARTS[most]
    return f"{name} took most of the rest, {model.part_percentages[most]:.1f}%. {advice}"


def _detect_slow_data_loading(model: ModelSummary) -> Iterator[ExpertFinding]:
    instances = model.rollup.select_instances("start_ns", "end_ns", "op")
    loads = measures.compute_loader_op_mask(model.rollup.measures).gather(instances["op"])
    has_dali = bool((model.rollup.ops["op_type"] == "DALI").any())
    loading = instances.filter(loads).select("start_ns", "end_ns")
    share = (
        model.compute_percentage_of_iteration_time(_compute_exposed_loading_time(loading, model))
        if loading.height
        else 0.0
    )
    if share > _LOADER_PERCENT:
        problem = f"{share:.1f}% of the time was spent loading data while no GPU was busy"
        recommendation = _recommend(model, "data_loading", _advise_faster_loading(model, has_dali=has_dali))
        yield ExpertFinding("dataloader_detector", problem, recommendation)
    elif not has_dali:
        yield ExpertFinding("dataloader_detector", NO_DALI, _DALI)


def _advise_faster_loading(model: ModelSummary, *, has_dali: bool) -> str:
    """Return DLProf's advice for slow data loading."""
    lines = ["The GPU waits for data: find out whether reading, preprocessing or copying the data is slow."]
    if not _read_program_settings(model).get("num_workers", 0):
        lines.append("Set num_workers > 0 so that the data loader prepares batches in advance.")
    if not _read_program_settings(model).get("pin_memory", True):
        lines.append("Set pin_memory=True so that copies to the GPU are faster.")
    return "\n".join([*lines, "" if has_dali else _DALI])


def _compute_exposed_loading_time(loading: pl.DataFrame, model: ModelSummary) -> int:
    """Return the time in ns in which data was loaded but no op instance of the aggregated iterations used a GPU."""
    rollup = model.rollup
    activities = rollup.measures.gpu_activities
    active = rollup.iteration.gather(activities["instance"]).is_not_null()
    gpu_times = activities.filter(active).select("start_ns", "end_ns")
    both = intervals.intersect_unions(loading, gpu_times, by=[]) if gpu_times.height else gpu_times
    shared = int(both.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item() or 0)
    return int(intervals.compute_union_durations(loading, by=[]).item() or 0) - shared


def _detect_unsteady_iterations(model: ModelSummary) -> Iterator[ExpertFinding]:
    mean, deviation = model.iteration_mean_and_std_ns
    durations = model.iteration_durations
    if len(durations) < 2 or not mean or deviation / mean <= _MAX_VARIATION:  # noqa: PLR2004 - one cannot vary
        return
    start, stop = _find_longest_steady_sequence(durations)
    run = durations[start:stop]
    if len(run) < _MIN_STEADY_RUN or _compute_coefficient_of_variation(run) > _MAX_VARIATION:
        return
    its = model.rollup.iterations
    first, last = its.first + start, its.first + stop - 1
    problem = f"Iterations {its.first} to {its.last} differ widely in duration"
    recommendation = f"Iterations {first} to {last} are steady: aggregate only these, with --iterations {first}:{last}."
    ideal = f'{{"ideal_start":"{first}","ideal_stop":"{last}"}}\n'
    yield ExpertFinding("bad_iteration_range_detector", problem, recommendation, "ShowBadIterationRange", ideal)


def _compute_coefficient_of_variation(durations: list[int]) -> float:
    mean = sum(durations) / len(durations)
    return float((sum((n - mean) ** 2 for n in durations) / len(durations)) ** 0.5 / mean)


def _find_longest_steady_sequence(durations: list[int]) -> tuple[int, int]:
    """Find the longest sequence of consecutive iterations without outliers.

    An outlier is more than 1.5 interquartile ranges below the first or above the third quartile of the durations.

    Returns:
        The index of the first iteration of the sequence, and the index after its last iteration. If several sequences
        are equally long, the first one is returned.
    """
    ordered = sorted(durations)
    low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
    fence = 1.5 * (high - low)
    frame = pl.DataFrame({"steady": [low - fence <= n <= high + fence for n in durations]}).with_row_index("row")
    runs = frame.with_columns(run=pl.col("steady").rle_id()).filter("steady").group_by("run").agg(
        start=pl.col("row").min(), count=pl.len()
    )  # fmt: skip
    start, count = runs.sort("count", "start", descending=[True, False]).select("start", "count").row(0)
    return int(start), int(start + count)


def _detect_missing_iterations(model: ModelSummary) -> Iterator[ExpertFinding]:
    its = model.rollup.iterations
    if not its.has_key_op:
        problem = f"There is only one iteration: no key op {its.key} was found"
        yield ExpertFinding(
            "no_iterations_detector", problem, "Set --key-op to the name of the op that ends each iteration."
        )


def _detect_disabled_cudnn_benchmark(model: ModelSummary) -> Iterator[ExpertFinding]:
    if _read_program_settings(model).get("cudnn_benchmark_disabled"):
        problem = "Convolutions ran without torch.backends.cudnn.benchmark"
        recommendation = "Set torch.backends.cudnn.benchmark = True if input shapes rarely change."
        yield ExpertFinding("cudnn_benchmark_detector", problem, recommendation)


def _detect_debugging_functions(model: ModelSummary) -> Iterator[ExpertFinding]:
    enabled = [label for name, label in _DEBUGGING.items() if _read_program_settings(model).get(name)]
    if enabled:
        recommendation = "".join(f"Use {label} for debugging only.\n" for label in enabled)
        yield ExpertFinding(
            "slow_api_detector", "Functions for debugging that slow down the program were enabled", recommendation
        )


def _detect_missing_emit_nvtx(model: ModelSummary) -> Iterator[ExpertFinding]:
    if model.rollup.measures.ops.dialect.name == "pyprof" and not _read_program_settings(model).get("emit_nvtx"):
        problem = "The ranges of torch.autograd.profiler.emit_nvtx were not found"
        recommendation = "Run the loop inside emit_nvtx() to attribute kernels of the backward pass to their ops."
        yield ExpertFinding("emit_nvtx_detector", problem, recommendation)


_DETECTORS: tuple[Callable[[ModelSummary], Iterator[ExpertFinding]], ...] = (
    *(_detect_missing_amp, _detect_imbalanced_gpus, _detect_underutilized_gpus, _detect_slow_data_loading),
    *(_detect_unsteady_iterations, _detect_missing_iterations, _detect_disabled_cudnn_benchmark),
    *(_detect_debugging_functions, _detect_missing_emit_nvtx),
)
