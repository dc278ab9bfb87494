"""Compute the roofline of kernels: arithmetic and DRAM traffic in relation to the peaks of the GPU.

Everything is computed from metrics of the launches themselves. Operations are counted for each pipe. The FP64, FP32 and
FP16 pipes count instructions, where an FMA is two operations and a packed FP16 instruction counts twice. The operations
of the Tensor Core pipe have their own counters, which include operations on integers. The capacity of a pipe is the
number of operations that it could have executed during the launch: the metric ``peak_sustained``, in operations per
cycle, multiplied by the clock frequency and the duration. The share of a pipe is its operations divided by its
capacity.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.ncu.join import pivot_values, select_most_precise_values
from tracekit.errors import MissingTableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

NEAR_PEAK = 0.7
SM_THROUGHPUT = "sm__throughput"
PIPES = ("fp64", "fp32", "fp16", "tensor")
MAX_RANGE_DEPTH = 100
"""Largest depth of a range. Launches in more deeply nested ranges are attributed to their ancestor at this depth."""

_OPERATIONS = {
    "fp64": {"dadd": 1, "dmul": 1, "dfma": 2},
    "fp32": {"fadd": 1, "fmul": 1, "ffma": 2},
    "fp16": {"hadd": 2, "hmul": 2, "hfma": 4},
}
_PREFIXES = ("smsp__sass_thread_inst_executed_op_", "sm__sass_thread_inst_executed_op_")
_TENSOR = "sm__ops_path_tensor_"
_TENSOR_BUSY = r"^sm__pipe_tensor_type_\w+_cycles_active\.avg\.pct_of_peak_sustained_elapsed$"
_FP64_TENSOR_BUSY = "sm__pipe_tensor_op_dmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
_TIME = "gpu__time_duration.sum"
_SM_CLOCK = ("sm__cycles_elapsed", "smsp__cycles_elapsed", "gpc__cycles_elapsed")
_PERCENT = ".avg.pct_of_peak_sustained_elapsed"
_DRAM_BYTES = ("dram__bytes", "dram__bytes_read", "dram__bytes_write")
_METRIC_PATTERN = (
    rf"^({'|'.join(_PREFIXES)})[dfh](add|mul|fma)_pred_on\.sum|^{_TENSOR}.*\.sum|{_TENSOR_BUSY}|^{re.escape(_FP64_TENSOR_BUSY)}$"
    rf"|^{re.escape(_TIME)}$|^dram__bytes(_read|_write)?\.sum|^(dram|sm|smsp|gpc)__cycles_elapsed\.avg\.per_second$"
    rf"|^(sm__throughput|gpu__dram_throughput|gpu__compute_memory_throughput){re.escape(_PERCENT)}$"
)
_NS = 1e9
_MAX_VALUE = 1e18

HINT = (
    "collect them with ncu --set roofline, or with --metrics and the list in docs/roofline.md; --section SpeedOfLight "
    "is sufficient for the shares of throughput"
)

_SUMS = (
    "time_ns",
    *(f"{pipe}_flop" for pipe in PIPES),
    *(f"{pipe}_busy_ns" for pipe in PIPES),
    *("math_busy_ns", "math_capacity"),
    *("dram_bytes", "dram_busy_ns", "dram_capacity", "dram_percent_ns", "memory_percent_ns", "sm_percent_ns"),
)
"""The quantities that are summed over launches: times, operations, bytes, capacities, and times at peak rates."""


def compute_launch_roofline(launches: pl.LazyFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Compute the roofline of each launch.

    Args:
        launches: The table ``ncu_launches``. Groups of launches, from a summary, are used only if there are no single
            launches.
        metrics: The table ``ncu_metrics``.

    Returns:
        One row per launch or group of launches, in file order: ``launch_id``, ``name``, ``launches`` (number of
        launches), and the columns of ``derive_roofline_columns``.

    Raises:
        MissingTableError: No launch has any metric that a roofline uses.
    """
    rows = _compute_launch_quantities(select_disjoint_results(launches.collect(), by_range=False), metrics)
    return derive_roofline_columns(rows.rename({"invocations": "launches"}))


def compute_kernel_roofline(launches: pl.LazyFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Compute the roofline of each kernel name, with the columns of ``compute_launch_roofline``.

    ``launch_id`` is the id of the first launch with the name.
    """
    return _sum_groups(
        _compute_launch_quantities(select_disjoint_results(launches.collect(), by_range=False), metrics), ["name"]
    )


def compute_range_roofline(launches: pl.LazyFrame, metrics: pl.LazyFrame, ranges: pl.LazyFrame) -> pl.DataFrame:
    """Compute the roofline of each NVTX range, including everything that was launched in nested ranges.

    Args:
        launches: The table ``ncu_launches``.
        metrics: The table ``ncu_metrics``.
        ranges: The table ``ncu_nvtx_ranges``.

    Returns:
        One row per path of push/pop ranges, with the columns of ``compute_launch_roofline`` and the path in ``name``.
        Launches outside all ranges have one row with a null name.
    """
    rows = _compute_launch_quantities(select_disjoint_results(launches.collect(), by_range=True), metrics)
    inside = rows.drop("name").join(
        _find_enclosing_range_paths(ranges), "launch_id", how="left", maintain_order="left_right"
    )
    return _sum_groups(inside, ["name"])


def derive_roofline_columns(sums: pl.DataFrame) -> pl.DataFrame:
    """Derive rates, shares of the peaks and the limiter of each row from sums over launches.

    Returns:
        The rows with the following columns added. A column is null where metrics that it needs are missing.

        - ``flop``: counted operations of all pipes.
        - ``flop_per_byte``: operations per byte of DRAM traffic.
        - ``flop_per_s``, ``bytes_per_s``: operations and bytes of DRAM traffic per second.
        - ``pipe``: the busiest pipe. It is null if all pipes were idle.
        - ``peak_flop_per_s``, ``peak_bytes_per_s``: peak rates of the busiest pipe (FP32 if all were idle) and of DRAM.
        - ``math_share``: share of the peak of the busiest pipe, or the throughput of the SM if FP32 operations were not
          counted.
        - ``math_from``: the pipes that were counted, separated by spaces, or ``sm__throughput``.
        - ``memory_share``: share of the peak of DRAM or, if its bytes are unknown, a throughput from the profiler.
        - ``memory_from``: the metric from which ``memory_share`` is derived.
        - ``sm_throughput_share``, ``memory_throughput_share``: throughputs of the SM and of all memory as measured by
          the profiler.
        - ``limiter``: ``math-limited`` if only computation is near its peak, ``memory-limited`` if only memory is,
          ``math- and memory-limited`` if both are. Computation is near its peak if ``math_share`` is greater than
          ``NEAR_PEAK``, and memory if ``memory_share`` or ``memory_throughput_share``, which includes the caches, is.
          ``SM`` replaces ``math`` if ``math_share`` is the throughput of the SM. If neither is near its peak, the label
          is ``SM-limited`` if ``sm_throughput_share`` is greater than ``NEAR_PEAK``, and ``latency-limited`` otherwise.
          The label is null if the shares of computation or of memory are missing and no other share is greater than
          ``NEAR_PEAK``.
    """
    time = pl.when(pl.col("time_ns") > 0).then(pl.col("time_ns"))
    return sums.with_columns(
        *_math_share_exprs(time),
        *_memory_share_exprs(time),
        flop=_total_flop_expr(),
        sm_throughput_share=pl.col("sm_percent_ns") / time,
        memory_throughput_share=pl.col("memory_percent_ns") / time,
    ).with_columns(
        flop_per_byte=pl.col("flop") / _null_unless_positive_expr("dram_bytes"),
        flop_per_s=pl.col("flop") / time * _NS,
        bytes_per_s=pl.col("dram_bytes") / time * _NS,
        peak_flop_per_s=pl.col("math_capacity") / time * _NS,
        peak_bytes_per_s=pl.col("dram_capacity") / time * _NS,
        limiter=_limiter_label_expr(),
    )


def select_disjoint_results(launches: pl.DataFrame, *, by_range: bool) -> pl.DataFrame:
    """Return the Nsight Compute results that describe each launch at most once.

    If there are single launches, they are returned. Otherwise, the groups of the summary by range are returned if
    ``by_range`` is true, and the groups of the summary by kernel if it is false. Without these groups, all results are
    returned.
    """
    group = pl.col("kind").cast(pl.String) == "group"
    single = launches.filter(~group)
    if single.height:
        return single
    in_range = pl.col("range_depth") > 0
    groups = launches.filter(in_range if by_range else ~in_range & pl.col("name").is_not_null())
    return groups if groups.height else launches


def _compute_launch_quantities(launches: pl.DataFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Compute the time, counted operations, bytes, busy times and capacities of each launch from its metrics.

    Returns:
        One row per launch: ``launch_id``, ``name``, ``invocations`` and the columns ``_SUMS``, summed over the
        invocations.

    Raises:
        MissingTableError: No launch has any metric that a roofline uses.
    """
    selected = select_most_precise_values(
        metrics.filter(pl.col("metric").cast(pl.String).str.contains(_METRIC_PATTERN))
    )
    valid = pl.when(pl.col("value").is_finite() & pl.col("value").is_between(0, _MAX_VALUE)).then(pl.col("value"))
    values = pivot_values(selected.with_columns(valid.alias("value")).drop_nulls("value"), "value")
    rows = launches.select("launch_id", "name", "invocations", "duration_ns")
    rows = rows.join(values, "launch_id", how="left", maintain_order="left")
    rows = _add_roofline_quantities(rows)
    measured = [c for c in _SUMS if c != "time_ns"]
    if rows.height and rows.select(pl.all_horizontal(pl.col(measured).is_null().all())).item():
        raise MissingTableError(f"{rows.height:,} launches have none of the metrics that a roofline needs", hint=HINT)
    count = pl.col("invocations")
    return rows.select("launch_id", "name", "invocations", *(pl.col(c) * count for c in _SUMS))


def _add_roofline_quantities(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the time, counted operations, bytes, busy times and capacities of one execution of each launch.

    Args:
        rows: One row per launch, with one column per metric.

    Returns:
        The rows with the columns ``_SUMS``, and with intermediate columns.
    """
    metrics = _MetricColumns(rows.columns)
    rows = rows.with_columns(
        time_ns=pl.coalesce(metrics[_TIME], pl.col("duration_ns").cast(pl.Float64)),
        sm_hz=pl.coalesce(*(metrics[f"{unit}.avg.per_second"] for unit in _SM_CLOCK)),
    )
    time, sm_cycles = pl.col("time_ns"), pl.col("sm_hz") * pl.col("time_ns") / _NS
    rows = rows.with_columns(
        *metrics.pipe_exprs(sm_cycles), *metrics.tensor_exprs(sm_cycles), dram_bytes=metrics.dram_bytes_expr()
    )
    dram_capacity = (
        metrics["dram__bytes.sum.peak_sustained"] * metrics["dram__cycles_elapsed.avg.per_second"] * time / _NS
    )
    rows = rows.with_columns(
        dram_capacity=dram_capacity,
        dram_percent_ns=metrics[f"gpu__dram_throughput{_PERCENT}"] / 100 * time,
        memory_percent_ns=metrics[f"gpu__compute_memory_throughput{_PERCENT}"] / 100 * time,
        sm_percent_ns=metrics[f"sm__throughput{_PERCENT}"] / 100 * time,
    )
    busy = {"dram_busy_ns": ("dram_bytes", "dram_capacity")}
    busy |= {f"{pipe}_busy_ns": (f"{pipe}_flop", f"{pipe}_capacity") for pipe in _OPERATIONS}
    rows = rows.with_columns(
        (pl.col(amount) / _null_unless_positive_expr(capacity) * time).alias(name)
        for name, (amount, capacity) in busy.items()
    )
    return rows.with_columns(_math_busy_ns_expr(), _math_capacity_expr())


class _MetricColumns:
    """Expressions for metrics, looked up by name. The expression for a metric that was not collected is null."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def __getitem__(self, name: str) -> pl.Expr:
        return pl.col(name) if name in self._names else pl.lit(None, pl.Float64)

    def counter_expr(self, name: str, cycles: pl.Expr | None = None) -> pl.Expr:
        """Return an expression for a counter: its recorded sum, or its rate times the duration in seconds or cycles."""
        by_time = [self[f"{name}.sum"], self[f"{name}.sum.per_second"] * pl.col("time_ns") / _NS]
        by_cycle = [] if cycles is None else [self[f"{name}.sum.per_cycle_elapsed"] * cycles]
        return pl.coalesce(*by_time, *by_cycle)

    def pipe_exprs(self, cycles: pl.Expr) -> Iterator[pl.Expr]:
        """Yield expressions for the operations and the capacity of the FP64, FP32 and FP16 pipes."""
        for pipe, operations in _OPERATIONS.items():
            counts = [
                pl.coalesce(*(self.counter_expr(f"{prefix}{name}_pred_on", cycles) for prefix in _PREFIXES)) * worth
                for name, worth in operations.items()
            ]
            fma, worth = list(operations.items())[-1]
            peak = pl.coalesce(*(self[f"{prefix}{fma}_pred_on.sum.peak_sustained"] for prefix in _PREFIXES))
            yield _sum_or_null_expr(counts).alias(f"{pipe}_flop")
            yield (peak * worth * cycles).alias(f"{pipe}_capacity")

    def tensor_exprs(self, cycles: pl.Expr) -> Iterator[pl.Expr]:
        """Yield expressions for the operations of Tensor Cores, their busy time, and their capacity.

        The busy time is the time that the operations need at their peak rates, which depend on the type of the
        operands. If operations were not counted, it is the time in which the pipe was busy.
        """
        counts = {leaf: self.counter_expr(leaf, cycles) for leaf in self._list_leaf_counters()}
        busy = [
            pl.when(count == 0).then(0.0).otherwise(count / (self[f"{leaf}.sum.peak_sustained"] * cycles))
            for leaf, count in counts.items()
        ]
        pipe = next((name for name in sorted(self._names) if re.match(_TENSOR_BUSY, name)), _TENSOR_BUSY)
        percent = self[pipe] + self[_FP64_TENSOR_BUSY].fill_null(0.0)
        share = pl.coalesce(_sum_or_null_expr(busy), percent / 100) if busy else percent / 100
        flop = pl.coalesce(
            _sum_or_null_expr(list(counts.values())) if counts else None, pl.when(percent == 0).then(0.0)
        )
        yield flop.alias("tensor_flop")
        yield (share * pl.col("time_ns")).alias("tensor_busy_ns")
        yield pl.when(share > 0).then(flop / share).alias("tensor_capacity")

    def dram_bytes_expr(self) -> pl.Expr:
        """Return an expression for the bytes read from and written to DRAM."""
        both, read, written = (self.counter_expr(name) for name in _DRAM_BYTES)
        return pl.coalesce(both, read + written)

    def _list_leaf_counters(self) -> list[str]:
        """Return counters of tensor operations that together count each operation once.

        Counters that include other counters are omitted. For each operand type, the counters by instruction are used if
        they exist, and otherwise the counter of the operand type.
        """
        counters = {n.partition(".")[0] for n in self._names if n.startswith(_TENSOR) and ".peak_" not in n}
        types = {name: re.search(r"src_([a-z0-9]+)", name) for name in counters}
        by_instruction = {t[1] for name, t in types.items() if t and name.startswith(f"{_TENSOR}op_")}
        single = {n for n, t in types.items() if n.startswith(f"{_TENSOR}op_") or not (t and t[1] in by_instruction)}
        return sorted(n for n in single if not any(other.startswith(f"{n}_") for other in single))


def _sum_or_null_expr(terms: list[pl.Expr]) -> pl.Expr:
    """Return an expression for the sum of several terms. It is null if any term is null."""
    return pl.sum_horizontal(terms, ignore_nulls=False)


def _null_unless_positive_expr(column: str) -> pl.Expr:
    return pl.when(pl.col(column) > 0).then(pl.col(column))


def _sum_groups(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return the sums of launches by group, in order of descending time. A sum is null if any value is null."""
    sums = (pl.when(pl.col(c).is_not_null().all()).then(pl.col(c).sum()).alias(c) for c in _SUMS)
    grouped = rows.group_by(keys, maintain_order=True).agg(
        pl.col("launch_id").first(), *sums, launches=pl.col("invocations").sum()
    )
    return derive_roofline_columns(grouped).sort("time_ns", descending=True, nulls_last=True, maintain_order=True)


def _find_enclosing_range_paths(ranges: pl.LazyFrame) -> pl.DataFrame:
    """Return the path of each push/pop range that encloses each launch.

    There is one row per launch and enclosing range: ``launch_id`` and ``name`` (the path).
    """
    name = pl.col("name").cast(pl.String).fill_null("")
    push_pop = ranges.filter(pl.col("kind").cast(pl.String) == "push_pop").select("launch_id", "depth", name)
    nested = (
        push_pop.sort("launch_id", "depth").filter(pl.int_range(pl.len()).over("launch_id") < MAX_RANGE_DEPTH).collect()
    )
    ends = (nested["name"].str.len_bytes().cast(pl.Int64) + 1).alias("end")
    full_paths = nested.group_by("launch_id", maintain_order=True).agg(path=pl.col("name").str.join("/"))
    prefix_ends = (
        nested.select("launch_id").with_columns(ends).with_columns(pl.col("end").cum_sum().over("launch_id") - 1)
    )
    paths = prefix_ends.join(full_paths, "launch_id", how="left", maintain_order="left")
    prefix = pl.col("path").cast(pl.Binary).bin.slice(0, pl.col("end")).cast(pl.String)
    return paths.select("launch_id", prefix.cast(pl.Categorical).alias("name"))


def _total_flop_expr() -> pl.Expr:
    """Return an expression for the total of the counted operations.

    It is null if no operations were counted, or if Tensor Cores were busy but their operations were not counted.
    """
    flop = [pl.col(f"{pipe}_flop") for pipe in PIPES]
    uncounted = pl.col("tensor_flop").is_null() & (pl.col("tensor_busy_ns") > 0)
    return pl.when(pl.any_horizontal(f.is_not_null() for f in flop) & ~uncounted.fill_null(value=False)).then(
        pl.sum_horizontal(flop)
    )


def _value_of_busiest_pipe_expr(busy: Mapping[str, pl.Expr], values: Mapping[str, pl.Expr]) -> pl.Expr:
    """Return an expression for the value of the pipe with the largest busy time. It is null if all pipes were idle."""
    most = pl.max_horizontal(*busy.values())
    return pl.coalesce(*(pl.when((b == most) & (b > 0)).then(values[pipe]) for pipe, b in busy.items()))


def _math_busy_ns_expr() -> pl.Expr:
    """Return an expression for the time that the busiest pipe needs at its peak rate.

    It is null if FP32 operations were not counted, because the busiest pipe is then unknown.
    """
    most = pl.max_horizontal(*(f"{pipe}_busy_ns" for pipe in PIPES))
    return pl.when(pl.col("fp32_busy_ns").is_not_null()).then(most).alias("math_busy_ns")


def _math_capacity_expr() -> pl.Expr:
    """Return an expression for the capacity of the busiest pipe, or of the FP32 pipe if all pipes were idle."""
    busy = {pipe: pl.col(f"{pipe}_busy_ns") for pipe in PIPES}
    capacity = {pipe: pl.col(f"{pipe}_capacity") for pipe in PIPES}
    return pl.coalesce(_value_of_busiest_pipe_expr(busy, capacity), "fp32_capacity").alias("math_capacity")


def _math_share_exprs(time: pl.Expr) -> Iterator[pl.Expr]:
    """Yield expressions for ``math_share``, ``pipe`` and ``math_from``.

    These columns are derived from the busiest pipe or, if the busiest pipe is unknown, from the throughput of the SM.
    """
    busy = {pipe: pl.col(f"{pipe}_busy_ns") for pipe in PIPES}
    counted = pl.col("math_busy_ns").is_not_null()
    pipes = (pl.when(b.is_not_null()).then(pl.lit(pipe)) for pipe, b in busy.items())
    pipe_list = pl.concat_str(*pipes, separator=" ", ignore_nulls=True)
    throughput = pl.when(pl.col("sm_percent_ns").is_not_null()).then(pl.lit(SM_THROUGHPUT))
    yield (pl.coalesce("math_busy_ns", "sm_percent_ns") / time).alias("math_share")
    yield pl.when(counted).then(_value_of_busiest_pipe_expr(busy, {pipe: pl.lit(pipe) for pipe in PIPES})).alias("pipe")
    yield pl.when(counted).then(pipe_list).otherwise(throughput).alias("math_from")


def _memory_share_exprs(time: pl.Expr) -> Iterator[pl.Expr]:
    """Yield expressions for ``memory_share`` and ``memory_from``.

    These columns are derived from DRAM bytes or, if these are unknown, from the throughput of DRAM or of all memory.
    """
    sources: Mapping[str, str] = {
        "dram__bytes": "dram_busy_ns",
        "gpu__dram_throughput": "dram_percent_ns",
        "gpu__compute_memory_throughput": "memory_percent_ns",
    }
    yield (pl.coalesce(*sources.values()) / time).alias("memory_share")
    yield pl.coalesce(*(pl.when(pl.col(c).is_not_null()).then(pl.lit(n)) for n, c in sources.items())).alias(
        "memory_from"
    )


def _limiter_label_expr() -> pl.Expr:
    math, sm = pl.col("math_share") > NEAR_PEAK, pl.col("sm_throughput_share") > NEAR_PEAK
    memory = pl.max_horizontal("memory_share", "memory_throughput_share") > NEAR_PEAK
    is_sm = pl.col("math_from") == SM_THROUGHPUT
    return (
        pl.when(math & memory)
        .then(pl.when(is_sm).then(pl.lit("SM- and memory-limited")).otherwise(pl.lit("math- and memory-limited")))
        .when(math)
        .then(pl.when(is_sm).then(pl.lit("SM-limited")).otherwise(pl.lit("math-limited")))
        .when(memory)
        .then(pl.lit("memory-limited"))
        .when(sm)
        .then(pl.lit("SM-limited"))
        .when(math.not_() & memory.not_())
        .then(pl.lit("latency-limited"))
    )
