"""How near to the limits of the GPU launches came: arithmetic, traffic with DRAM, and the peaks of both.

Everything is from metrics of the launches themselves. Operations are counted by pipe: FP64, FP32 and FP16 instructions,
an FMA as two operations and packed FP16 twice, and tensor cores, whose counters count operations (also of integers).
A peak is what the GPU could have done in the time of the launch at the clock it had: ``peak_sustained``, which is per
cycle, times the clock. A pipe's share is the part of that time in which the pipe at its peak would have done the same.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from tracekit.core.ncu.wide import most_precise, pivoted
from tracekit.errors import MissingTableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

NEAR_PEAK = 0.7
SM_THROUGHPUT = "sm__throughput"
PIPES = ("fp64", "fp32", "fp16", "tensor")
DEEPEST = 100
"""Ranges nested deeper count for the one that holds them."""

_OPERATIONS = {
    "fp64": {"dadd": 1, "dmul": 1, "dfma": 2},
    "fp32": {"fadd": 1, "fmul": 1, "ffma": 2},
    "fp16": {"hadd": 2, "hmul": 2, "hfma": 4},
}
_PREFIXES = ("smsp__sass_thread_inst_executed_op_", "sm__sass_thread_inst_executed_op_")
_TENSOR = "sm__ops_path_tensor_"
_TENSOR_BUSY = r"^sm__pipe_tensor_type_\w+_cycles_active\.avg\.pct_of_peak_sustained_elapsed$"
_TENSOR_64_BUSY = "sm__pipe_tensor_op_dmma_cycles_active.avg.pct_of_peak_sustained_elapsed"
_TIME = "gpu__time_duration.sum"
_SM_CLOCK = ("sm__cycles_elapsed", "smsp__cycles_elapsed", "gpc__cycles_elapsed")
_PERCENT = ".avg.pct_of_peak_sustained_elapsed"
_DRAM = ("dram__bytes", "dram__bytes_read", "dram__bytes_write")
_WANTED = (
    rf"^({'|'.join(_PREFIXES)})[dfh](add|mul|fma)_pred_on\.sum|^{_TENSOR}.*\.sum|{_TENSOR_BUSY}|^{re.escape(_TENSOR_64_BUSY)}$"
    rf"|^{re.escape(_TIME)}$|^dram__bytes(_read|_write)?\.sum|^(dram|sm|smsp|gpc)__cycles_elapsed\.avg\.per_second$"
    rf"|^(sm__throughput|gpu__dram_throughput|gpu__compute_memory_throughput){re.escape(_PERCENT)}$"
)
_NS = 1e9
_LARGEST = 1e18

HINT = (
    "collect them: ncu --set roofline, or --metrics gpu__time_duration.sum,dram__bytes.sum,… (docs/roofline.md lists "
    "all); for shares of throughput alone --section SpeedOfLight"
)

_SUMS = (
    "time_ns",
    *(f"{pipe}_flop" for pipe in PIPES),
    *(f"{pipe}_busy_ns" for pipe in PIPES),
    *("math_busy_ns", "math_capacity"),
    *("dram_bytes", "dram_busy_ns", "dram_capacity", "dram_percent_ns", "memory_percent_ns", "sm_percent_ns"),
)
"""What is added up over launches: operations, bytes, what the peaks allowed, and the time taken at the peaks."""


def by_launch(launches: pl.LazyFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Give the roofline of each launch.

    Args:
        launches: ``ncu_launches``; groups of a summary only if there are no single launches.
        metrics: ``ncu_metrics``.

    Returns:
        A row a launch, or group of launches, in the order of the file: launch_id, name, launches, and the columns of
        ``finished``.

    Raises:
        MissingTableError: No launch has any metric that tells something of it.
    """
    rows = _measured(_own(launches.collect(), in_ranges=False), metrics)
    return finished(rows.rename({"invocations": "launches"}))


def by_kernel(launches: pl.LazyFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Give the roofline of each kernel name: as ``by_launch``, a row a name, ``launch_id`` is the first one."""
    return _summed(_measured(_own(launches.collect(), in_ranges=False), metrics), ["name"])


def by_range(launches: pl.LazyFrame, metrics: pl.LazyFrame, ranges: pl.LazyFrame) -> pl.DataFrame:
    """Give the roofline of each NVTX range: all that was launched inside it, and in ranges within it.

    Args:
        launches: ``ncu_launches``.
        metrics: ``ncu_metrics``.
        ranges: ``ncu_nvtx_ranges``.

    Returns:
        As ``by_launch``, a row a path of push/pop ranges, called ``name``; and one, without name, for launches
        outside all ranges.
    """
    rows = _measured(_own(launches.collect(), in_ranges=True), metrics)
    inside = rows.drop("name").join(_enclosing(ranges), "launch_id", how="left", maintain_order="left_right")
    return _summed(inside, ["name"])


def finished(sums: pl.DataFrame) -> pl.DataFrame:
    """Say of sums over launches what limits them: n rows in, n rows out.

    Returns:
        Further columns, null where their metrics are missing: ``flop`` and ``flop_per_byte``, ``flop_per_s``,
        ``bytes_per_s``; ``math_share``, how near to its peak the nearest pipe of each launch was, over the time of
        all of them; ``pipe``, which was the nearest most of the time; ``peak_flop_per_s`` of these pipes;
        ``math_from``, the pipes that were counted, or what stands for them; ``memory_share``, ``peak_bytes_per_s``,
        ``memory_from``;
        ``sm_throughput_share``, ``memory_throughput_share``; ``limiter``.
    """
    time = pl.when(pl.col("time_ns") > 0).then(pl.col("time_ns"))
    return sums.with_columns(*_math(time), *_memory(time), flop=_flop()).with_columns(
        sm_throughput_share=pl.col("sm_percent_ns") / time,
        memory_throughput_share=pl.col("memory_percent_ns") / time,
        flop_per_byte=pl.col("flop") / _positive("dram_bytes"),
        flop_per_s=pl.col("flop") / time * _NS,
        bytes_per_s=pl.col("dram_bytes") / time * _NS,
        peak_flop_per_s=pl.col("math_capacity") / time * _NS,
        peak_bytes_per_s=pl.col("dram_capacity") / time * _NS,
        limiter=_limiter(),
    )


def _own(launches: pl.DataFrame, *, in_ranges: bool) -> pl.DataFrame:
    """Leave results that stand for different work: single ones, or the groups of one summary."""
    group = pl.col("kind").cast(pl.String) == "group"
    single = launches.filter(~group)
    if single.height:
        return single
    in_range = pl.col("range_depth") > 0
    some = launches.filter(in_range if in_ranges else ~in_range & pl.col("name").is_not_null())
    return some if some.height else launches


def _measured(launches: pl.DataFrame, metrics: pl.LazyFrame) -> pl.DataFrame:
    """Give launches what can be added up of them: n rows in, n rows out."""
    found = most_precise(metrics.filter(pl.col("metric").cast(pl.String).str.contains(_WANTED)))
    sane = pl.when(pl.col("value").is_finite() & pl.col("value").is_between(0, _LARGEST)).then(pl.col("value"))
    values = pivoted(found.with_columns(sane.alias("value")).drop_nulls("value"), "value")
    rows = launches.select("launch_id", "name", "invocations", "duration_ns")
    rows = rows.join(values, "launch_id", how="left", maintain_order="left")
    rows = _quantities(rows)
    told = [c for c in _SUMS if c != "time_ns"]
    if rows.height and rows.select(pl.all_horizontal(pl.col(told).is_null().all())).item():
        raise MissingTableError(f"no metric of {rows.height:,} launches tells of a roofline", hint=HINT)
    count = pl.col("invocations")
    return rows.select("launch_id", "name", "invocations", *(pl.col(c) * count for c in _SUMS))


def _quantities(rows: pl.DataFrame) -> pl.DataFrame:
    """Make of metrics what is added up, for one launch."""
    at = _Metrics(rows.columns)
    rows = rows.with_columns(
        time_ns=pl.coalesce(at[_TIME], pl.col("duration_ns").cast(pl.Float64)),
        sm_hz=pl.coalesce(*(at[f"{unit}.avg.per_second"] for unit in _SM_CLOCK)),
    )
    time, sm_cycles = pl.col("time_ns"), pl.col("sm_hz") * pl.col("time_ns") / _NS
    rows = rows.with_columns(*at.pipes(sm_cycles), *at.tensor(sm_cycles), dram_bytes=at.dram_bytes())
    capacity = at["dram__bytes.sum.peak_sustained"] * at["dram__cycles_elapsed.avg.per_second"] * time / _NS
    rows = rows.with_columns(
        dram_capacity=capacity,
        dram_percent_ns=at[f"gpu__dram_throughput{_PERCENT}"] / 100 * time,
        memory_percent_ns=at[f"gpu__compute_memory_throughput{_PERCENT}"] / 100 * time,
        sm_percent_ns=at[f"sm__throughput{_PERCENT}"] / 100 * time,
    )
    busy = {"dram_busy_ns": ("dram_bytes", "dram_capacity")}
    busy |= {f"{pipe}_busy_ns": (f"{pipe}_flop", f"{pipe}_capacity") for pipe in _OPERATIONS}
    rows = rows.with_columns(
        (pl.col(done) / _positive(could) * time).alias(name) for name, (done, could) in busy.items()
    )
    return rows.with_columns(_math_busy(), _math_capacity())


class _Metrics:
    """The columns of metrics that there are, as expressions; others are null."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)

    def __getitem__(self, name: str) -> pl.Expr:
        return pl.col(name) if name in self._names else pl.lit(None, pl.Float64)

    def counted(self, name: str, cycles: pl.Expr | None = None) -> pl.Expr:
        """Return a count: as such, or from its rate by time or by cycle."""
        found = [self[f"{name}.sum"], self[f"{name}.sum.per_second"] * pl.col("time_ns") / _NS]
        by_cycle = [] if cycles is None else [self[f"{name}.sum.per_cycle_elapsed"] * cycles]
        return pl.coalesce(*found, *by_cycle)

    def pipes(self, cycles: pl.Expr) -> Iterator[pl.Expr]:
        """Return operations of the pipes that instructions tell of, and what each could have done in that time."""
        for pipe, operations in _OPERATIONS.items():
            counts = [
                pl.coalesce(*(self.counted(f"{prefix}{name}_pred_on", cycles) for prefix in _PREFIXES)) * worth
                for name, worth in operations.items()
            ]
            fma, worth = list(operations.items())[-1]
            peak = pl.coalesce(*(self[f"{prefix}{fma}_pred_on.sum.peak_sustained"] for prefix in _PREFIXES))
            yield _sum(counts).alias(f"{pipe}_flop")
            yield (peak * worth * cycles).alias(f"{pipe}_capacity")

    def tensor(self, cycles: pl.Expr) -> Iterator[pl.Expr]:
        """Return operations of tensor cores, the time that they took at their peaks, and their peak over the time.

        Types of operands have peaks of their own. Where operations are not counted, the time that the pipe was busy.
        """
        counts = {leaf: self.counted(leaf, cycles) for leaf in self._leaves()}
        busy = [
            pl.when(count == 0).then(0.0).otherwise(count / (self[f"{leaf}.sum.peak_sustained"] * cycles))
            for leaf, count in counts.items()
        ]
        pipe = next((name for name in sorted(self._names) if re.match(_TENSOR_BUSY, name)), _TENSOR_BUSY)
        percent = self[pipe] + self[_TENSOR_64_BUSY].fill_null(0.0)
        share = pl.coalesce(_sum(busy), percent / 100) if busy else percent / 100
        flop = pl.coalesce(_sum(list(counts.values())) if counts else None, pl.when(percent == 0).then(0.0))
        yield flop.alias("tensor_flop")
        yield (share * pl.col("time_ns")).alias("tensor_busy_ns")
        yield pl.when(share > 0).then(flop / share).alias("tensor_capacity")

    def dram_bytes(self) -> pl.Expr:
        """Return bytes moved to and from DRAM."""
        both, read, written = (self.counted(name) for name in _DRAM)
        return pl.coalesce(both, read + written)

    def _leaves(self) -> list[str]:
        """Return the counters of tensor operations that hold no other one: by instruction, else by type."""
        counters = {n.partition(".")[0] for n in self._names if n.startswith(_TENSOR) and ".peak_" not in n}
        types = {name: re.search(r"src_([a-z0-9]+)", name) for name in counters}
        by_instruction = {t[1] for name, t in types.items() if t and name.startswith(f"{_TENSOR}op_")}
        single = {n for n, t in types.items() if n.startswith(f"{_TENSOR}op_") or not (t and t[1] in by_instruction)}
        return sorted(n for n in single if not any(other.startswith(f"{n}_") for other in single))


def _sum(parts: list[pl.Expr]) -> pl.Expr:
    """Add up: null if any part is."""
    return pl.sum_horizontal(parts, ignore_nulls=False)


def _positive(column: str) -> pl.Expr:
    return pl.when(pl.col(column) > 0).then(pl.col(column))


def _summed(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Add launches up by group, the one that took longest first; a sum of which any part is unknown is null."""
    sums = (pl.when(pl.col(c).is_not_null().all()).then(pl.col(c).sum()).alias(c) for c in _SUMS)
    grouped = rows.group_by(keys, maintain_order=True).agg(
        pl.col("launch_id").first(), *sums, launches=pl.col("invocations").sum()
    )
    return finished(grouped).sort("time_ns", descending=True, nulls_last=True, maintain_order=True)


def _enclosing(ranges: pl.LazyFrame) -> pl.DataFrame:
    """Give each launch the path of every push/pop range that it is in: ``launch_id``, ``name``."""
    name = pl.col("name").cast(pl.String).fill_null("")
    opened = ranges.filter(pl.col("kind").cast(pl.String) == "push_pop").select("launch_id", "depth", name)
    nested = opened.sort("launch_id", "depth").filter(pl.int_range(pl.len()).over("launch_id") < DEEPEST).collect()
    ends = (nested["name"].str.len_bytes().cast(pl.Int64) + 1).alias("end")
    whole = nested.group_by("launch_id", maintain_order=True).agg(path=pl.col("name").str.join("/"))
    ended = nested.select("launch_id").with_columns(ends).with_columns(pl.col("end").cum_sum().over("launch_id") - 1)
    paths = ended.join(whole, "launch_id", how="left", maintain_order="left")
    prefix = pl.col("path").cast(pl.Binary).bin.slice(0, pl.col("end")).cast(pl.String)
    return paths.select("launch_id", prefix.cast(pl.Categorical).alias("name"))


def _flop() -> pl.Expr:
    """All operations that are counted; null if none are, or tensor cores worked and theirs are not."""
    flop = [pl.col(f"{pipe}_flop") for pipe in PIPES]
    uncounted = pl.col("tensor_flop").is_null() & (pl.col("tensor_busy_ns") > 0)
    return pl.when(pl.any_horizontal(f.is_not_null() for f in flop) & ~uncounted.fill_null(value=False)).then(
        pl.sum_horizontal(flop)
    )


def _nearest(busy: Mapping[str, pl.Expr], values: Mapping[str, pl.Expr]) -> pl.Expr:
    """Take the value of the pipe that is nearest to its peak; null if all stood still."""
    most = pl.max_horizontal(*busy.values())
    return pl.coalesce(*(pl.when((b == most) & (b > 0)).then(values[pipe]) for pipe, b in busy.items()))


def _math_busy() -> pl.Expr:
    """How long the pipe nearest to its peak would have taken; null without FP32, for then the nearest is not known."""
    most = pl.max_horizontal(*(f"{pipe}_busy_ns" for pipe in PIPES))
    return pl.when(pl.col("fp32_busy_ns").is_not_null()).then(most).alias("math_busy_ns")


def _math_capacity() -> pl.Expr:
    """What the nearest pipe could have done; where all stood still, FP32."""
    busy = {pipe: pl.col(f"{pipe}_busy_ns") for pipe in PIPES}
    capacity = {pipe: pl.col(f"{pipe}_capacity") for pipe in PIPES}
    return pl.coalesce(_nearest(busy, capacity), "fp32_capacity").alias("math_capacity")


def _math(time: pl.Expr) -> Iterator[pl.Expr]:
    """How near to their peaks the nearest pipes are. Where that is not known, what ncu says of the SM as a whole."""
    busy = {pipe: pl.col(f"{pipe}_busy_ns") for pipe in PIPES}
    counted = pl.col("math_busy_ns").is_not_null()
    pipes = (pl.when(b.is_not_null()).then(pl.lit(pipe)) for pipe, b in busy.items())
    listed = pl.concat_str(*pipes, separator=" ", ignore_nulls=True)
    throughput = pl.when(pl.col("sm_percent_ns").is_not_null()).then(pl.lit(SM_THROUGHPUT))
    yield (pl.coalesce("math_busy_ns", "sm_percent_ns") / time).alias("math_share")
    yield pl.when(counted).then(_nearest(busy, {pipe: pl.lit(pipe) for pipe in PIPES})).alias("pipe")
    yield pl.when(counted).then(listed).otherwise(throughput).alias("math_from")


def _memory(time: pl.Expr) -> Iterator[pl.Expr]:
    """How near to the peak DRAM was; without bytes or their peak, what ncu says of DRAM, or of all memory."""
    sources: Mapping[str, str] = {
        "dram__bytes": "dram_busy_ns",
        "gpu__dram_throughput": "dram_percent_ns",
        "gpu__compute_memory_throughput": "memory_percent_ns",
    }
    yield (pl.coalesce(*sources.values()) / time).alias("memory_share")
    yield pl.coalesce(*(pl.when(pl.col(c).is_not_null()).then(pl.lit(n)) for n, c in sources.items())).alias(
        "memory_from"
    )


def _limiter() -> pl.Expr:
    math, memory = pl.col("math_share") > NEAR_PEAK, pl.col("memory_share") > NEAR_PEAK
    whole = pl.col("math_from") == SM_THROUGHPUT
    return (
        pl.when(math & memory)
        .then(pl.when(whole).then(pl.lit("SM- and memory-limited")).otherwise(pl.lit("math- and memory-limited")))
        .when(math)
        .then(pl.when(whole).then(pl.lit("SM-limited")).otherwise(pl.lit("math-limited")))
        .when(memory)
        .then(pl.lit("memory-limited"))
        .when(math.not_() & memory.not_())
        .then(pl.lit("latency-limited"))
    )
