"""Summarize one side of a comparison: the counts and times of its events by name and iteration."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from tracekit.core.categories import GRAPH, OPERATION_TEXT, category_expr
from tracekit.core.compare.names import normalize_categorical_names_expr
from tracekit.core.diagnosis.idle import list_idle_times
from tracekit.core.makers import read_makers
from tracekit.core.relations import ACTIVITIES, CALL, KERNELS, THREAD
from tracekit.core.rollup import groups
from tracekit.core.series import map_categories_expr
from tracekit.core.steps import list_notes_by_rank
from tracekit.text.makers import name_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracekit.core.iterations import Iterations
    from tracekit.core.rollup import Rollup
    from tracekit.core.steps import StepSummary

    Frames = Callable[[str], pl.LazyFrame]


KERNEL_PERCENT, GPU_PERCENT, COPY_PERCENT, CPU_PERCENT = 1.5, 2.5, 10.0, 200.0
"""Smallest increases that are marked as significant. Smaller ones also occur between two runs of one program.

In 19 pairs of runs of three programs, the times of kernels differed by up to 1.2 % in nearly all iterations, those of
ops by up to 1.8 %, and times on the CPU by up to a factor of 2.
"""


class ComparedKind(NamedTuple):
    """The declaration of one kind of rows that can be compared, such as kernels or API calls.

    Attributes:
        title: Title of the rows, for headings.
        time: Description of the time of a row.
        min_percent: Smallest increase in per cent that is marked as significant. The smallest decrease is the one that
            undoes this increase.
        rows: Function that returns ``name``, ``iteration``, ``count``, ``time_ns`` and ``bytes`` of one trace.
        total: Name of the row that contains the total, "" if the total is the sum of all rows, or None if the kind has
            no total because its rows overlap.
        tables: Tables, of which a capture with such rows has at least one.
    """

    title: str
    time: str
    min_percent: float
    rows: Callable[[SummarySource], pl.DataFrame]
    total: str | None = ""
    tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SummarySource:
    """A trace to summarize, with the options of the summary.

    Attributes:
        frames: Function that returns a declared table of the correlated and rolled-up trace.
        rollup: The roll-up of the trace.
        exact_names: Whether names are compared as recorded, without being normalized.
    """

    frames: Frames
    rollup: Rollup
    exact_names: bool = False

    @property
    def iterations(self) -> Iterations:
        """The iterations of the trace. The warm-up is not aggregated, unless the user decided otherwise."""
        return self.rollup.iterations

    @property
    def iterations_with_warm_up(self) -> Iterations:
        """The iterations of the trace, in which the warm-up is aggregated unless iterations were chosen."""
        return self.rollup.complete.iterations

    def normalized_name_expr(self, column: str, rules: str) -> pl.Expr:
        """Return an expression for the normalized names in a Categorical column."""
        return normalize_categorical_names_expr(pl.col(column), "exact" if self.exact_names else rules)


NO_OP = "(no op)"
"""Name of the row of kernels that no op launched."""
SAMPLES: dict[str, pl.DataType | type[pl.DataType]] = {
    "kind": pl.String,
    "name": pl.Categorical,
    "unit": pl.Int64,
    "count": pl.Int64,
    "time_ns": pl.Int64,
    "bytes": pl.Int64,
    "max_ns": pl.Int64,
}
"""Columns of the samples of a summary. Names are Categorical, because a long name can have many samples."""
STEPS = "steps"
"""Name of the fact that describes what delimits the iterations, and how much of the GPU work lies in them."""
_MAX_FACT = 4000
MAX_UNITS = 256
"""Maximum number of units. If there are more iterations, a unit consists of several consecutive iterations.

The number of iterations per unit is a power of two, so that the units of different captures can be merged into equal
ones.
"""
ALLOCATOR, LOGS, TOTALS = "memory of allocators", "logs of collectives", "totals without a timeline"
"""Names of recorded data that is not compared."""
RECORDED = {
    "CUDA": ("kernels", "memcpys", "memsets", "api_calls"),
    "CUDA graphs as a whole": ("graph_launches",),
    "CUDA events": ("cuda_events",),
    "NVTX ranges": ("nvtx_ranges",),
    "OS runtime calls": ("osrt_calls",),
    "CPU samples": ("cpu_samples",),
    "CPU scheduling": ("cpu_scheduling",),
    "Python samples": ("python_samples",),
    "GPU metrics": ("gpu_metrics",),
    "GPU memory usage": ("memory_events",),
    ALLOCATOR: ("allocator_events", "memory_blocks"),
    LOGS: ("communication_calls",),
    TOTALS: ("activity_totals",),
    "MPI calls": ("mpi_calls",),
    "OpenMP events": ("openmp_events",),
}
"""Tables whose presence shows which data a capture recorded, by name of the data."""
READ_COLUMNS: Mapping[str, Sequence[str]] = {
    "graph_launches": (*CALL, "device_id", "start_ns", "end_ns"),
    "kernels": (*CALL, "device_id", "start_ns", "end_ns", "short_name", "name", "operation"),
    "memcpys": (*CALL, "device_id", "start_ns", "end_ns", "copy_kind", "bytes"),
    "memsets": (*CALL, "device_id", "start_ns", "end_ns", "bytes"),
    "api_calls": ("api_call_id", *THREAD, "correlation_id", "start_ns", "end_ns", "name"),
    "nvtx_ranges": ("range_id", "kind", *THREAD, "domain_id", "domain", "start_ns", "end_ns", "name"),
    "jit_operations": (*THREAD, "start_ns", "end_ns", "name"),
    "osrt_calls": (*THREAD, "start_ns", "end_ns", "name", "event_class"),
    "cpu_scheduling": (*THREAD, "timestamp_ns", "is_scheduled_in", "thread_state"),
    "cpu_samples": (*THREAD, "timestamp_ns"),
}
"""Recorded columns that a summary of all kinds reads, keyed by table, so that they can be read in one pass."""
CAPTURE_FACTS = ("tool", "tool_version", "driver_version", "cuda_version", "cpu_model", "os")
"""Facts of ``capture_info`` that two comparable captures have in common."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts and times of one side of a comparison.

    A unit consists of one or more consecutive iterations.

    Attributes:
        samples: One row per kind, name and unit, with the columns ``SAMPLES``. ``unit`` is null for events outside of
            all iterations, and ``bytes`` is null for kinds without sizes. ``max_ns`` is the duration of the longest
            event, and null for all kinds except kernels.
        units: Number of iterations in each unit.
        facts: Facts about the capture, such as the names of the GPUs. None of them identifies people or machines.
        steps: What delimits the iterations of the capture. None for a baseline and for several captures, whose facts
            describe the iterations.
    """

    samples: pl.DataFrame
    units: tuple[int, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    steps: StepSummary | None = None

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return sum(self.units)

    def rename(self, rename: Callable[[pl.Expr], pl.Expr], kinds: Sequence[str]) -> Summary:
        """Return the summary with other names in the given kinds. Rows that get the same name are added up.

        Args:
            rename: Function that returns an expression for the new names, given one for the names (String).
            kinds: The kinds, keys of ``KINDS``.
        """
        renamed = pl.when(pl.col("kind").is_in(kinds)).then(map_categories_expr(pl.col("name"), rename))
        return replace(self, samples=_sum_samples(self.samples.with_columns(name=renamed.otherwise("name"))))

    def select_samples_of_kind(self, kind: str) -> pl.DataFrame:
        """Return the samples of one kind, without the column ``kind``."""
        return self.samples.filter(pl.col("kind") == kind).drop("kind")


def summarize_trace(source: SummarySource, *, kinds: Sequence[str], facts: Mapping[str, str]) -> Summary:
    """Return the counts and times of the events of a trace, by name and iteration.

    If iterations were chosen, events outside of them are omitted. If the warm-up is left out, only its events are
    omitted, so that two captures differ in nothing else if only one of them has a warm-up.

    Args:
        source: The trace, and how its names are compared.
        kinds: The kinds to summarize, keys of ``KINDS``.
        facts: Facts about the capture, such as the names of the GPUs.
    """
    iterations = source.iterations
    numbers = iterations.aggregated["iteration"].sort()
    size = 1 << max(-(-len(numbers) // MAX_UNITS) - 1, 0).bit_length()
    unit_of = pl.DataFrame({"iteration": numbers, "unit": pl.int_range(len(numbers), eager=True) // size})
    complete = source.iterations_with_warm_up.frame
    is_partial = not complete["aggregated"].all()
    warm_up = complete.filter("aggregated").select("iteration").join(unit_of, on="iteration", how="anti")
    frames_by_kind = []
    for kind in kinds:
        rows = KINDS[kind].rows(source).join(warm_up, on="iteration", how="anti")
        rows = rows.join(unit_of, on="iteration", how="left")
        rows = rows.drop_nulls("unit") if is_partial else rows
        rows = rows if "max_ns" in rows.columns else rows.with_columns(max_ns=pl.lit(None, pl.Int64))
        frames_by_kind.append(_sum_samples(rows.with_columns(kind=pl.lit(kind))))
    units = unit_of.group_by("unit", maintain_order=True).len()["len"].to_list()
    samples = pl.concat([pl.DataFrame(schema=SAMPLES), *frames_by_kind])
    steps = source.rollup.step_summary
    return Summary(
        samples, tuple(units), {**facts, **_describe_steps([steps.note] if steps.has_gpu_work else [])}, steps
    )


def _describe_steps(notes: Sequence[str]) -> dict[str, str]:
    """Return the fact that describes the iterations, or no fact if there are no sentences about them."""
    return {STEPS: " ".join(notes)[:_MAX_FACT]} if notes else {}


def combine_summaries(summaries: Sequence[Summary], ranks: Sequence[int] | None = None) -> Summary:
    """Return the sum of the summaries of processes that ran together, such as the ranks of a job.

    An iteration of the result consists of the same iteration of every process. Iterations that are missing in any
    process, and iterations in the same unit as a missing one, count as outside of all iterations. If a fact differs
    between processes, its values are listed.

    Args:
        summaries: The summaries.
        ranks: Rank of each process, or None for 0, 1, 2 and so on.
    """
    if len(summaries) == 1:
        return summaries[0]
    merged = merge_units_to_equal_sizes(summaries)
    by_unit = zip(*(s.units for s in merged), strict=False)
    units = tuple(sizes[0] for sizes in itertools.takewhile(lambda sizes: len({*sizes}) == 1, by_unit))
    unit = pl.when(pl.col("unit") < len(units)).then("unit")
    rows = pl.concat([s.samples.with_columns(unit) for s in merged])
    names = dict.fromkeys(name for s in summaries for name in s.facts)
    facts = {n: ", ".join(dict.fromkeys(s.facts[n] for s in summaries if n in s.facts)) for n in names}
    steps = {
        rank: s.steps
        for rank, s in zip(range(len(summaries)) if ranks is None else ranks, summaries, strict=True)
        if s.steps is not None and STEPS in s.facts
    }
    return Summary(_sum_samples(rows), units, {**facts, **_describe_steps(list_notes_by_rank(steps))})


def merge_units_to_equal_sizes(summaries: Sequence[Summary]) -> list[Summary]:
    """Merge consecutive units of summaries until all units have equally many iterations.

    The last unit of each summary may have fewer iterations. All other units of each given summary must have equally
    many iterations.
    """
    size = math.lcm(*(s.units[0] for s in summaries if s.units))
    counts = [min(size // s.units[0], len(s.units)) if s.units else 1 for s in summaries]
    return [s if count == 1 else _merge_units(s, count) for s, count in zip(summaries, counts, strict=True)]


def merge_all_units(summary: Summary) -> Summary:
    """Return a summary with a single unit that contains all iterations. Without iterations, it has no unit."""
    return _merge_units(summary, len(summary.units)) if summary.units else summary


def _merge_units(summary: Summary, count: int) -> Summary:
    """Merge each ``count`` consecutive units of a summary into one unit."""
    units = tuple(sum(summary.units[i : i + count]) for i in range(0, len(summary.units), count))
    return replace(summary, samples=_sum_samples(summary.samples.with_columns(pl.col("unit") // count)), units=units)


def collect_capture_facts(info: Mapping[str, str], source: SummarySource, counts: Mapping[str, int]) -> dict[str, str]:
    """Return the facts that determine whether a capture is comparable with other captures.

    An export names the version of the tool that exported it, not of the tool that recorded it. Only exports have the
    property ``schema_version``.

    Args:
        info: The properties of ``capture_info``.
        source: The trace.
        counts: Number of rows of each table in ``RECORDED``.
    """
    iterations = source.iterations
    facts = {name: info[name] for name in CAPTURE_FACTS if name in info}
    if "schema_version" in info and "tool_version" in facts:
        facts["export_version"] = facts.pop("tool_version")
    gpus = [f"{count} × {name}" for name, count in _count_used_gpus_by_name(source)]
    recorded = [what for what, tables in RECORDED.items() if any(counts[table] for table in tables)]
    facts |= {"gpus": ", ".join(gpus)} if gpus else {}
    facts |= {"names": "as recorded"} if source.exact_names else {}
    facts |= {"key_op": iterations.key} if iterations.has_key_op else {}
    return facts | {"recorded": ", ".join(recorded)}


def _count_used_gpus_by_name(source: SummarySource) -> list[tuple[str, int]]:
    """Return each distinct name of the GPUs with activities, sorted, with the number of these GPUs that have it."""
    used = source.rollup.used_devices
    devices = source.frames("devices").filter(pl.col("device_id").is_in(used.implode()))
    rows = devices.select(pl.col("name", "chip").cast(pl.String)).collect().iter_rows()
    makers = read_makers(source.frames)
    return sorted(Counter(name_gpu(name, chip, makers) for name, chip in rows).items())


def _sum_samples(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the samples with the same kind, name and unit."""
    sizes = pl.when(pl.col("bytes").is_not_null().any()).then(pl.col("bytes").sum())
    totals = (pl.col("count", "time_ns").sum(), sizes, pl.col("max_ns").max())
    summed = rows.group_by("kind", "name", "unit").agg(totals)
    return summed.select(pl.col(c).cast(t) for c, t in SAMPLES.items()).sort("kind", "name", "unit")


_DURATION = pl.col("end_ns") - pl.col("start_ns")
_COUNT = pl.len().cast(pl.Int64).alias("count")


def _sum_by_name_and_iteration(
    rows: pl.LazyFrame, *aggregates: pl.Expr, size: pl.Expr | None = None, time: pl.Expr = _DURATION
) -> pl.DataFrame:
    """Return the count, time and bytes of events by name and iteration.

    Args:
        rows: The events, with the columns ``name`` and ``iteration`` and those that the expressions read.
        aggregates: Expressions for further aggregates of the events.
        size: Expression for the size of an event in bytes, or None if events have no size.
        time: Expression for the time of an event in ns.
    """
    total = pl.lit(None, pl.Int64) if size is None else size.sum()
    grouped = rows.group_by("name", "iteration").agg(
        _COUNT, *aggregates, time_ns=time.sum().cast(pl.Int64), bytes=total
    )
    return grouped.collect().with_columns(pl.col("name").cast(pl.Categorical), pl.col("iteration").cast(pl.Int64))


def _read_kernel_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count and time of kernels by name, and of all CUDA graphs that were recorded as a whole."""
    names = {
        "kernels": source.normalized_name_expr("name", "kernel"),
        "graph_launches": pl.lit("(CUDA graph)", pl.Categorical),
    }
    longest = _DURATION.max().alias("max_ns")
    rows = [
        _sum_by_name_and_iteration(
            source.frames(table).select(name.alias("name"), "iteration", "start_ns", "end_ns"), longest
        )
        for table, name in names.items()
    ]
    return pl.concat(rows)


def _read_op_kernel_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count and time of kernels and of whole CUDA graphs, by the name and direction of their op."""
    op = source.normalized_name_expr("op_name", "range").fill_null(pl.lit(NO_OP, pl.Categorical))
    columns = (op.alias("name"), pl.col("direction").cast(pl.String), "iteration", "start_ns", "end_ns")
    rows = pl.concat([source.frames(table).select(columns) for table in KERNELS])
    totals = (_COUNT, _DURATION.sum().cast(pl.Int64).alias("time_ns"), _DURATION.max().alias("max_ns"))
    return _append_directions_to_names(rows.group_by("name", "direction", "iteration").agg(totals).collect(), "max_ns")


def _read_category_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count and time of kernels by category, such as attention, and of whole CUDA graphs."""
    categories = {"kernels": category_expr(OPERATION_TEXT), "graph_launches": pl.lit(GRAPH, pl.Categorical)}
    longest = _DURATION.max().alias("max_ns")
    rows = [
        _sum_by_name_and_iteration(
            source.frames(table).select(category.alias("name"), "iteration", "start_ns", "end_ns"), longest
        )
        for table, category in categories.items()
    ]
    return pl.concat(rows)


def _read_op_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count and GPU time of ops by name and direction."""
    ops = source.frames("ops").select(pl.col("op_id").cast(pl.Categorical), pl.col("direction").cast(pl.String))
    rows = source.frames("op_instances").join(ops, on="op_id", how="left")
    by_op = rows.select("direction", "iteration", "gpu_time_ns", name=source.normalized_name_expr("op_name", "range"))
    grouped = by_op.group_by("name", "direction", "iteration").agg(_COUNT, time_ns=pl.col("gpu_time_ns").sum())
    return _append_directions_to_names(grouped.collect())


def _read_group_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count and time of groups of ops by path and direction.

    The time of a group is the time in which at least one of its activities runs.
    """
    rollup = source.rollup
    rows = groups.compute_group_times(
        rollup.measures, source.iterations_with_warm_up, rollup.devices["device_id"], rollup.measures.mode
    )
    rows = rows.with_columns(path=pl.when(pl.col("path") == "").then(pl.lit("(all ops)")).otherwise("path"))
    name = source.normalized_name_expr("path", "range")
    return _append_directions_to_names(
        rows.cast({"path": pl.Categorical}).select(
            "direction", "iteration", name=name, count="instance_count", time_ns="gpu"
        )
    )


def _append_directions_to_names(rows: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Append the direction to each name, add the column ``bytes``, which is null, and keep the given columns."""
    by_direction = rows.partition_by("direction", as_dict=True, maintain_order=True)
    named = []
    for (direction,), part in by_direction.items():
        append = functools.partial(pl.format, "{}" if direction is None else f"{{}} [{direction}]")
        named.append(part.with_columns(map_categories_expr(pl.col("name"), append)))
    unsized = pl.lit(None, pl.Int64).alias("bytes")
    return pl.concat(named or [rows]).select("name", "iteration", "count", "time_ns", unsized, *columns)


def _read_range_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count and duration of NVTX ranges by path."""
    return _sum_by_name_and_iteration(_add_iteration_of_end(source, _read_ranges_with_paths(source)))


def _read_projected_range_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count of NVTX ranges by path, and the time of the GPU activities that were launched in them.

    Without any GPU activities, there is nothing to compare.
    """
    ranges = _read_ranges_with_paths(source)
    if source.rollup.measures.gpu_activities.is_empty():
        ranges = ranges.clear()
    return _sum_by_name_and_iteration(_add_iteration_of_end(source, ranges), time=pl.col("gpu_time_ns"))


def _read_ranges_with_paths(source: SummarySource) -> pl.LazyFrame:
    path = pl.coalesce(source.normalized_name_expr("path", "range"), source.normalized_name_expr("name", "range"))
    ranges = source.frames("nvtx_ranges").filter(pl.col("end_ns").is_not_null())
    return ranges.select("process_id", "start_ns", "end_ns", "gpu_time_ns", name=path)


def _read_api_call_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count and duration of API calls by name."""
    calls = source.frames("api_calls").select(
        "process_id", "start_ns", "end_ns", name=source.normalized_name_expr("name", "call")
    )
    return _sum_by_name_and_iteration(_add_iteration_of_end(source, calls))


def _read_copy_samples(source: SummarySource) -> pl.DataFrame:
    """Return the count, duration and size of memory copies by kind, and of memory sets."""
    names = {"memcpys": pl.col("copy_kind"), "memsets": pl.lit("Memset", pl.Categorical)}
    rows = [
        _sum_by_name_and_iteration(
            source.frames(table).select("iteration", "start_ns", "end_ns", "bytes", name=name), size=pl.col("bytes")
        )
        for table, name in names.items()
    ]
    return pl.concat(rows)


def _read_idle_time_samples(source: SummarySource) -> pl.DataFrame:
    """Return the idle time of GPUs by part of the ledger, as the rule ``gpu_idle_causes`` names it."""
    rows = list_idle_times(source.rollup.complete).lazy()
    return _sum_by_name_and_iteration(
        _add_iteration_of_end(source, rows.select("process_id", "start_ns", "end_ns", name="cause"))
    )


def _read_iteration_samples(source: SummarySource) -> pl.DataFrame:
    """Return the duration of each iteration, and the time of each type of activity, such as kernels or file access."""
    columns = ("iteration", "start_ns", "end_ns", *_PARTS.values())
    rows = source.frames("iterations").filter("is_aggregated").select(columns).collect()
    parts = {DURATION: _DURATION} | {name: pl.col(column) for name, column in _PARTS.items()}
    none = pl.lit(None, pl.Int64)
    frames = [
        rows.select("iteration", name=pl.lit(name, pl.Categorical), count=pl.lit(1, pl.Int64), time_ns=time, bytes=none)
        for name, time in parts.items()
    ]
    return pl.concat([f.select("name", "iteration", "count", "time_ns", "bytes") for f in frames])


DURATION = "(duration)"
ON_GPU = ("in Tensor Core kernels", "in other kernels", "in memory operations")
"""Names of the parts of an iteration in which a GPU is busy."""
_PARTS = {
    "in Tensor Core kernels": "in_tensor_core_kernels_ns",
    "in other kernels": "in_other_kernels_ns",
    "in memory operations": "in_memory_ops_ns",
    "in the data loader": "in_dataloader_ns",
    "in file accesses": "in_io_ns",
    "in other ops on the CPU": "in_cpu_ns",
    "in nothing recorded": "in_nothing_ns",
}


def _add_iteration_of_end(source: SummarySource, events: pl.LazyFrame) -> pl.LazyFrame:
    """Add the column ``iteration``: the aggregated or warm-up iteration in which each event ended, or null."""
    rows = events.collect()
    return rows.with_columns(iteration=source.iterations_with_warm_up.find_instance_iterations(rows)).lazy()


KINDS: dict[str, ComparedKind] = {
    "kernels": ComparedKind("Kernels", "duration", KERNEL_PERCENT, _read_kernel_samples, "", KERNELS),
    "ops": ComparedKind(
        "Ops", "time in which GPU activities of an instance ran", GPU_PERCENT, _read_op_samples, "", ("ops",)
    ),
    "groups": ComparedKind(
        "Groups of ops",
        "time in which GPU activities of the group ran",
        GPU_PERCENT,
        _read_group_samples,
        "(all ops)",
        ("group_nodes",),
    ),
    "nvtx_gpu": ComparedKind(
        "NVTX ranges on the GPU",
        "sum of the durations of GPU activities",
        GPU_PERCENT,
        _read_projected_range_samples,
        None,
        ("nvtx_ranges", *ACTIVITIES),
    ),
    "nvtx": ComparedKind(
        "NVTX ranges", "duration on the CPU", CPU_PERCENT, _read_range_samples, None, ("nvtx_ranges",)
    ),
    "api": ComparedKind("API calls", "duration", CPU_PERCENT, _read_api_call_samples, "", ("api_calls",)),
    "copies": ComparedKind(
        "Memory copies and sets", "duration", COPY_PERCENT, _read_copy_samples, "", ("memcpys", "memsets")
    ),
    "idle": ComparedKind(
        "Idle time of GPUs by cause", "idle time", CPU_PERCENT, _read_idle_time_samples, "", ACTIVITIES
    ),
    "iterations": ComparedKind(
        "Iterations", "duration", CPU_PERCENT, _read_iteration_samples, DURATION, (*KERNELS, "ops")
    ),
    "op_kernels": ComparedKind("Kernels by op", "duration", GPU_PERCENT, _read_op_kernel_samples, "", KERNELS),
    "categories": ComparedKind("Kernels by category", "duration", GPU_PERCENT, _read_category_samples, "", KERNELS),
}
"""The kinds of rows that can be compared, keyed by name."""
MISSING = "missing_{}"
"""Name of the fact that states why a capture has no rows of a kind."""
