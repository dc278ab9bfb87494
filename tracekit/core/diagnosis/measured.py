"""Find causes in what Nsight Compute measured of each kernel, and state which share of its duration a cure leaves.

The same rules apply to a report of Nsight Compute alone (``isolated``) and to the kernels of a timeline that match its
results.

Explain the kernels of a report of Nsight Compute, which measures single kernels and no steps.

The ledger divides the time of the measured kernels by class. Each kernel belongs to at most one cause, and nothing is
replayed: what a cure saves of a kernel is a share of the time of all kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.categorical import decode_categories, map_categories_expr
from tracekit.core.diagnosis import causes, kinds, ledger
from tracekit.core.diagnosis.answer import (
    MAX_CAUSES,
    MIN_SAVING,
    CauseOfTime,
    Evidence,
    LedgerPart,
    Place,
    Rows,
    StepFigures,
    Why,
)
from tracekit.core.diagnosis.answer import Saving as SavingOfCause
from tracekit.core.diagnosis.causes.kernels import (
    CHAIN_STAYS,
    FUSED_NAMES,
    LEAST_BY_HAND,
    MIN_CHAIN,
    MIN_LIKELY_CHAIN,
    POINTWISE,
    SIMILAR_SIZE,
)
from tracekit.core.diagnosis.events import convert_to_label_expr, find_framework
from tracekit.core.diagnosis.roofline import DEFAULT, Peaks, find_peaks
from tracekit.core.ncu.limits import compute_limits
from tracekit.core.ncu.roofline import NEAR_PEAK
from tracekit.system.sorting import create_series
from tracekit.text import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracekit.core.correlate import Frames

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

TABLE = "ncu_launches"
SCOPE = "only isolated kernels were measured, so the time between them, and what runs beside them, is unknown"
_MAX_ROW_IDS, _MAX_NAME = 100, 80
_LIMITED_SHARE = 0.5
_CHECK = "measure the kernels again with ncu, and compare their durations"
_RECORD_TIMES = "ncu --set basic, or add gpu__time_duration.sum to --metrics"
_RECORD_TIMELINE = "the timeline of the program: nsys profile --trace=cuda,nvtx"
_RECORD_METRICS = "the metrics of caches, pipes and access: ncu --set full"
_RECORD_KERNELS = "single kernels: ncu --replay-mode kernel --graph-profiling node"
_OPAQUE_SHARE = 0.2


class _Part(NamedTuple):
    """The kernels of one cause, and the shares of their durations that stay.

    Attributes:
        cause: Name of the cause.
        rows: Rows of the kernels.
        stays: Three columns, for the low, the likely and the high case.
        evidence: What was counted.
        change: Key of the change.
        missing: What to record to be sure, or "".
    """

    cause: str
    rows: Int64s
    stays: Floats
    evidence: str
    change: str = ""
    missing: str = ""


def explain_isolated_kernels(frames: Frames) -> Why:
    """Return the answer of a report of Nsight Compute: the time of its kernels by class, and their causes."""
    measured = read_measurements(frames)
    count = frames(TABLE).select(pl.len()).collect().item()
    if not measured.limits.height:
        text = f"Nsight Compute measured {count:,} kernels without their durations, so nothing can be explained"
        return Why(f"{text}: record them with {_RECORD_TIMES}.", "not_recorded")
    time = measured.limits["time_ns"].to_numpy()
    total = int(time.sum())
    places = _find_places(frames, measured)
    parts = tuple(_build_ledger(measured, places, total))
    names = decode_categories(measured.limits["name"].unique()).drop_nulls()
    framework = find_framework(frames, names, "ncu_nvtx_ranges")
    listed = sorted(
        (_create_cause(part, measured, places, total, framework) for part in _list_parts(measured, time, framework)),
        key=lambda cause: (cause.status == "unsure" and cause.saving.likely < MIN_SAVING, -cause.saving.likely),
    )
    shown = [c for c in listed if c.saving.likely >= MIN_SAVING]
    others = [c for c in listed if c not in shown and (c.saving.high >= MIN_SAVING or c.saving.high == 0)]
    chosen = tuple([*shown, *others][:MAX_CAUSES])
    shown = [c for c in shown if c in chosen]
    is_sure = any(c.status == "answered" for c in shown)
    notes = [SCOPE]
    opaque = sum(part.share for part in parts if part.group == "opaque")
    if opaque > _OPAQUE_SHARE:
        notes.append(f"{opaque:.0%} of the time was measured of whole ranges or graphs: record {_RECORD_KERNELS}")
    if measured.limits.height < count:
        notes.append(f"{count - measured.limits.height:,} of {count:,} results have no duration or repeat others")
    if not shown and _lacks_metrics(measured):
        notes.append(f"the report does not show what limits most of its kernels: record {_RECORD_METRICS}")
    return Why(
        sentence=_write_sentence(measured, total, shown),
        status="answered" if is_sure else "unsure" if shown or len(notes) > 1 else "nothing_found",
        step=StepFigures(None, 1, 0, total, total, total, None),
        ledger=parts,
        causes=chosen,
        together=sum((c.after for c in chosen), 0.0),
        notes=tuple(notes),
        device=find_device_name(frames),
        framework=framework,
        scope="kernels",
        roofline=next((c.evidence.text for c in chosen if c.saving.high == 0), ""),
    )


def _lacks_metrics(measured: Measurements) -> bool:
    """Return whether neither the limit nor the pipes of most kernels were measured, by their time."""
    limits = measured.limits
    is_product = create_series(kinds.select_classes(measured.cls, LIBRARY_CLASSES))
    limiter = limits["limiter"].fill_null("")
    unknown = (limiter == "") | (is_product & limiter.str.starts_with("SM") & limits["tensor_share"].is_null())
    return 2 * int(limits["time_ns"].filter(unknown).sum()) > int(limits["time_ns"].sum())


def _find_places(frames: Frames, measured: Measurements) -> pl.Series:
    """Return the innermost range of the program, not of a framework, around the launch of each kernel, or ""."""
    label = map_categories_expr(pl.col("name"), convert_to_label_expr).cast(pl.String)
    ranges = frames("ncu_nvtx_ranges").filter(pl.col("kind").cast(pl.String) == "push_pop")
    named = ranges.select("launch_id", "depth", place=label).filter(pl.col("place") != "").collect()
    inner = named.sort("depth").unique("launch_id", keep="last")
    joined = measured.limits.select("launch_id").join(inner, "launch_id", how="left", maintain_order="left")
    return joined["place"].fill_null("")


def _build_ledger(measured: Measurements, place: pl.Series, total: int) -> Iterator[LedgerPart]:
    """Yield the time of the kernels by class, the largest first."""
    rows = pl.DataFrame({"cls": create_series(measured.cls), "place": place, "ns": measured.limits["time_ns"]})
    totals = rows.group_by("cls").agg(pl.col("ns").sum()).sort("ns", "cls", descending=[True, False])
    places = rows.group_by("cls", "place").agg(pl.col("ns").sum()).sort("ns", "place", descending=[True, False])
    for cls, ns in totals.iter_rows():
        name = ledger.NAME_OF_CLASS[cls]
        own = places.filter(pl.col("cls") == cls).head(3).select("place", "ns").rows()
        yield LedgerPart(name, ledger.PARTS[name], ns, ns / total, ns, tuple(own))


def _list_parts(measured: Measurements, time: Int64s, framework: str) -> Iterator[_Part]:
    """Yield the causes with their kernels. No kernel belongs to two of them."""
    chains, stays_of_chains, evidence = _find_chains(measured, time, LEAST_BY_HAND if framework == "cuda" else 0.0)
    in_chain = np.zeros(len(time), np.bool_)
    in_chain[chains] = True
    if len(chains):
        yield _Part("unfused_pointwise", chains, stays_of_chains, evidence, missing=_RECORD_TIMELINE)
    conversions = kinds.select_classes(measured.cls, ("layout_conversion",))
    lanes = measured.partial_warps
    for cause, own, text, change in (
        ("precision", measured.is_certain, "compute products or convolutions without Tensor Cores", ""),
        ("memory_layout", conversions, "convert the layout of tensors", ""),
        ("memory_layout", ~conversions, "access memory with a stride", "strided_access"),
        ("low_occupancy", measured.is_certain & lanes, "have blocks that do not fill their warps", "partial_warps"),
        ("low_occupancy", measured.is_certain & ~lanes, "have fewer blocks than half of the multiprocessors", ""),
        ("low_occupancy", ~measured.is_certain, "wait with less than half of the possible warps", "few_active_warps"),
    ):
        rows = np.flatnonzero(measured.find_cause(cause) & own & ~in_chain)
        if len(rows):
            sure = bool(measured.is_certain[rows[0]])
            yield _Part(cause, rows, measured.stays[rows], text, change, "" if sure else _RECORD_METRICS)
    free = (measured.cause == 0) & ~in_chain
    for cause, text in zip(LIMITS, ("move data", "compute"), strict=True):
        rows = np.flatnonzero(measured.find_limit(cause) & free)
        free[rows] = False
        if time[rows].sum() >= _LIMITED_SHARE * time.sum():
            yield _Part(cause, rows, np.ones((len(rows), 3)), f"{text} at more than {NEAR_PEAK:.0%} of the peak rate")


def _find_chains(measured: Measurements, time: Int64s, least: float) -> tuple[Int64s, Floats, str]:
    """Return the pointwise kernels that were launched one after another, and the shares of their durations that stay.

    The kernels between two results of a report are unknown if only some kernels were measured.
    """
    names = measured.limits["name"]
    fused = names.cast(pl.String).fill_null("").str.contains(FUSED_NAMES).to_numpy()
    fits = kinds.select_classes(measured.cls, POINTWISE) & ~fused & (measured.cause == 0) & (time > SHORT_NS)
    fits &= measured.limits["invocations"].to_numpy() == 1
    blocks = np.maximum(np.nan_to_num(measured.read("blocks")), 1)
    same = np.concatenate([[False], fits[1:] & fits[:-1]]) & ~_find_changes_of_stream(measured)
    ratio = blocks / np.concatenate([blocks[:1], blocks[:-1]])
    first = fits & ~(same & (ratio * SIMILAR_SIZE > 1) & (ratio < SIMILAR_SIZE))
    chain = np.where(fits, np.cumsum(first), 0)
    length = np.bincount(chain, minlength=1)
    length[0] = 0
    rows = np.flatnonzero((length >= MIN_CHAIN)[chain])
    number = chain[rows]
    total = np.bincount(number, weights=time[rows], minlength=1)
    longest = np.zeros(len(total))
    np.maximum.at(longest, number, time[rows])
    share = longest[number] / np.maximum(total[number], 1)
    stays = np.stack([np.minimum(1, f * share) for f in CHAIN_STAYS], axis=1)
    stays[:, 1] = np.maximum(stays[:, 1], least)
    stays[length[number] < MIN_LIKELY_CHAIN, :2] = 1
    count = int((length >= MIN_CHAIN).sum())
    text = f"are pointwise and follow one another, in {count:,} chains of {MIN_CHAIN} or more"
    return rows, stays, text


def _find_changes_of_stream(measured: Measurements) -> npt.NDArray[np.bool_]:
    """Return which results have another process, GPU or stream than the result before them."""
    place = pl.struct("process_id", "device_id", "stream_id")
    return measured.limits.select(place.ne_missing(place.shift(1))).to_series().to_numpy()


def _create_cause(part: _Part, measured: Measurements, places: pl.Series, total: int, framework: str) -> CauseOfTime:
    rows = part.rows
    own = measured.limits["time_ns"].to_numpy()[rows]
    low, likely, high = (float((own * (1 - part.stays[:, i])).sum()) / total for i in range(3))
    ids = measured.limits["launch_id"].gather(create_series(rows))
    longest = int(rows[np.argmax(own)])
    named = pl.DataFrame({"place": places.gather(create_series(rows)), "ns": create_series(own)})
    totals = named.group_by("place").agg(pl.col("ns").sum()).sort("ns", "place", descending=[True, False])
    return CauseOfTime(
        cause=part.cause,
        place=Place(totals["place"][0] or None, None, None),
        evidence=Evidence(
            text=_describe_evidence(part, measured, own, longest),
            count=len(rows),
            total_ns=int(own.sum()),
            table=TABLE,
            row_id=measured.limits["launch_id"][longest],
            start_ns=None,
            end_ns=None,
        ),
        rows=(Rows(TABLE, tuple(ids.head(_MAX_ROW_IDS).to_list()), len(ids)),),
        change=causes.get_change(part.change or part.cause, framework),
        check=_CHECK if part.cause not in LIMITS else "",
        saving=SavingOfCause(low, likely, high),
        after=likely,
        status="unsure" if part.missing else "answered",
        missing=part.missing,
    )


def _describe_evidence(part: _Part, measured: Measurements, own: Int64s, longest: int) -> str:
    """Return what was counted, the longest kernel, its metrics, and what Nsight Compute's rules estimate."""
    name = str(measured.limits["name"].cast(pl.String)[longest] or "?")
    shown = name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
    text = f"{len(own):,} of {measured.limits.height:,} kernels {part.evidence}, for {format_duration(int(own.sum()))}"
    text += f"; the longest is {shown}"
    metrics = measured.describe(part.rows)
    text += f"; on average, Nsight Compute measured {metrics}" if metrics else ""
    columns = {"memory_layout": ("layout_speedup",), "low_occupancy": ("grid_speedup", "warps_speedup")}
    estimates = [measured.average(c, part.rows) for c in columns.get(part.cause, ())]
    known = [e for e in estimates if e is not None]
    return f"{text}; its rules estimate a speedup of up to {max(known):.0%}" if known else text


def _write_sentence(measured: Measurements, total: int, shown: list[CauseOfTime]) -> str:
    count = int(measured.limits["invocations"].sum())
    what = "1 isolated kernel, which takes" if count == 1 else f"{count:,} isolated kernels, which take"
    text = f"Nsight Compute measured {what} {format_duration(total)} on the GPU"
    if not shown:
        return f"{text}; no cure is predicted to save 2 % or more of it."
    listed = [
        f"{c.cause.replace('_', ' ')} costs about {format_duration(c.saving.likely * total)} ({c.saving.likely:.0%})"
        for c in shown[:2]
    ]
    return f"{text}: {'; '.join(listed)}."


CAUSES = ("", "precision", "memory_layout", "low_occupancy")
NUMBERS = {name: i for i, name in enumerate(CAUSES)}
LIMITS = ("memory_bound", "compute_bound")
"""The healthy causes: what limits kernels at the roofline."""
SHORT_NS = 3_000
"""Duration of a kernel up to which it mostly consists of starting and ending, so that no cure makes it shorter."""
LIBRARY_CLASSES = ("matmul", "matmul_fp32", "matrix_vector", "convolution", "convolution_fp32", "fused_attention")
_PRODUCTS, _PRODUCTS_FP32 = ("matmul", "convolution"), ("matmul_fp32", "convolution_fp32")
_IDLE_TENSOR, _BUSY_FP32 = 0.01, 0.1
_MIN_SPEEDUP, _MOVING_SHARE = 0.05, 0.4
_NEEDED_SECTORS, _USUAL_SECTORS, _LEAST_SECTORS = 16.0, 8.0, 4.0
_REACHED_SHARES = (0.3, 0.6, 1.0)
"""Share of a possible saving that is reached in the low, the likely and the high case.

A transposition whose warps touch 32 sectors per request takes 47 % less time if they touch 4.
"""
_FEW_WARPS, _FEW_LANES, _WARP = 0.5, 0.5, 32
_FP32_EFFICIENCY, _TF32_EFFICIENCY, _HALF_EFFICIENCY, _BEST_HALF_EFFICIENCY = 0.76, 0.5, 0.62, 0.75


@dataclass(frozen=True)
class Measurements:
    """What Nsight Compute measured of kernels, and the cause that it shows for each of them.

    Attributes:
        limits: One row per kernel, with the columns of ``compute_limits``. They are null for kernels without a result.
        cls: Number of the class of each kernel.
        cause: Number of the cause of each kernel in ``CAUSES``, or 0.
        stays: Share of the duration of each kernel that stays in the low, the likely and the high case: three columns.
        is_certain: Whether the metrics show that the cause applies to each kernel.
    """

    limits: pl.DataFrame
    cls: npt.NDArray[np.int8]
    cause: npt.NDArray[np.int8]
    stays: Floats
    is_certain: Mask

    @property
    def measured_kernels(self) -> Mask:
        """Which kernels have a result."""
        return self.limits["launch_id"].is_not_null().to_numpy()

    def find_cause(self, name: str) -> Mask:
        """Return which kernels have a cause."""
        result: Mask = self.cause == NUMBERS[name]
        return result

    @property
    def partial_warps(self) -> Mask:
        """Which kernels have blocks that leave at least half of the lanes of their warps idle."""
        threads = self.read("threads")
        result: Mask = threads / (_WARP * np.ceil(threads / _WARP)) <= _FEW_LANES
        return result

    def find_limit(self, name: str) -> Mask:
        """Return which kernels are limited by memory, or by computation."""
        if name == "memory_bound":
            columns: tuple[str, ...] = ("memory_share", "l2_share")
        else:
            columns = ("tensor_share", "fp32_share")
        near = [self.read(column) > NEAR_PEAK for column in columns]
        limiter = self.limits["limiter"].fill_null("").str.contains("^memory" if name == "memory_bound" else "^math")
        result: Mask = near[0] | near[1] | limiter.to_numpy()
        return result

    def read(self, column: str) -> Floats:
        """Return a share of each kernel, or NaN if it was not measured."""
        return self.limits[column].cast(pl.Float64).fill_null(np.nan).to_numpy()

    def average(self, column: str, rows: Int64s) -> float | None:
        """Return the average of a share over kernels, weighted by time, or None if it was not measured."""
        values, weights = self.read(column)[rows], self.limits["time_ns"].fill_null(0).to_numpy()[rows]
        known = ~np.isnan(values)
        total = weights[known].sum()
        return float((values[known] * weights[known]).sum() / total) if total else None

    def gather(self, rows: Int64s) -> Measurements:
        """Return the measurements of the kernels of the given rows. Row -1 has no result."""
        index = np.where(rows < 0, self.limits.height, rows)
        limits = pl.concat([self.limits, self.limits.clear(1)]).select(pl.all().gather(create_series(index)))
        other = np.array([kinds.NUMBERS["other_kernel"]], np.int8)
        return Measurements(
            limits,
            np.concatenate([self.cls, other])[index],
            np.concatenate([self.cause, np.zeros(1, np.int8)])[index],
            np.concatenate([self.stays, np.ones((1, 3))])[index],
            np.concatenate([self.is_certain, np.zeros(1, np.bool_)])[index],
        )

    def describe(self, rows: Int64s) -> str:
        """Return a clause with the averages over kernels, such as "DRAM at 80 % of its peak", or "" without metrics."""
        shares = (
            ("memory_share", "DRAM at {:.0%} of its peak"),
            ("l2_share", "L2 at {:.0%}"),
            ("l1_share", "L1 at {:.0%}"),
            ("sm_share", "multiprocessors at {:.0%}"),
            ("tensor_share", "Tensor Cores at {:.0%}"),
            ("fp32_share", "FP32 at {:.0%}"),
            ("occupancy", "{:.0%} of the possible warps active"),
        )
        averages = [(text, self.average(column, rows)) for column, text in shares]
        return ", ".join(text.format(value) for text, value in averages if value is not None)


def read_measurements(frames: Frames) -> Measurements:
    """Return what Nsight Compute measured of each kernel, in the order of its results."""
    limits = compute_limits(frames("ncu_launches"), frames("ncu_metrics"), frames("ncu_rules"))
    kind = frames("ncu_launches").select("launch_id", pl.col("kind").cast(pl.String)).collect()
    is_opaque = limits.join(kind, "launch_id", how="left", maintain_order="left")["kind"].is_in(
        ["range", "graph", "cmdlist"]
    )
    cls = kinds.map_names(limits["name"], kinds.classify_kernel_name, kinds.NUMBERS["other_kernel"])
    cls = np.where(is_opaque.to_numpy(), kinds.NUMBERS["opaque_graph"], cls).astype(np.int8)
    return find_causes(limits, cls, find_device_name(frames), _count_multiprocessors(frames, limits))


def find_device_name(frames: Frames) -> str | None:
    """Return the name of the first GPU whose name is known, or None."""
    return next((n for n in frames("devices").select("name").collect()["name"] if n), None)


def _count_multiprocessors(frames: Frames, limits: pl.DataFrame) -> int | None:
    """Return the number of multiprocessors of the GPU, or None if it is unknown."""
    counts = pl.concat(
        [
            frames("devices").select(pl.col("sm_count").cast(pl.Float64)).collect()["sm_count"],
            limits["sm_count"],
        ]
    )
    return next((int(count) for count in counts.drop_nulls() if count >= 1), None)


def find_causes(
    limits: pl.DataFrame, cls: npt.NDArray[np.int8], device_name: str | None, sm_count: int | None
) -> Measurements:
    """Return the cause of each kernel, and the share of its duration that stays."""
    size = limits.height
    cause, stays = np.zeros(size, np.int8), np.ones((size, 3))
    is_certain = np.zeros(size, np.bool_)
    result = Measurements(limits, cls, cause, stays, is_certain)
    each = limits["time_ns"].to_numpy() / np.maximum(limits["invocations"].to_numpy(), 1)
    free = (each > SHORT_NS) & (cls != kinds.NUMBERS["opaque_graph"])
    peaks = find_peaks(device_name) or DEFAULT
    for name, rule in (
        ("precision", _find_precision(result, peaks)),
        ("memory_layout", _find_conversions(result)),
        ("memory_layout", _find_strided_access(result)),
        ("low_occupancy", _find_partial_warps(result, each)),
        ("low_occupancy", _find_small_grids(result, each, sm_count or peaks.sm_count)),
        ("low_occupancy", _find_few_warps(result, each)),
    ):
        mask, of_cause, certain = rule
        own = free & mask
        cause[own], is_certain[own] = NUMBERS[name], certain
        stays[own] = of_cause[own].clip(0, 1)
        free &= ~own
    return result


_Cases = tuple["Mask", "Floats", bool]


def _find_precision(measured: Measurements, peaks: Peaks) -> _Cases:
    """Find matrix products in FP32: by their names, or by a busy FP32 pipe while Tensor Cores are idle."""
    tensor, single = measured.read("tensor_share"), measured.read("fp32_share")
    named = kinds.select_classes(measured.cls, _PRODUCTS_FP32) & ~(tensor > _IDLE_TENSOR)
    idle = kinds.select_classes(measured.cls, _PRODUCTS) & (tensor <= _IDLE_TENSOR) & (single >= _BUSY_FP32)
    rate = np.where(np.isnan(single), _FP32_EFFICIENCY, single) * peaks.fp32
    usual = np.full(len(rate), _FP32_EFFICIENCY * peaks.fp32)
    stays = np.stack(
        [
            usual / (_TF32_EFFICIENCY * peaks.tf32),
            usual / (_HALF_EFFICIENCY * peaks.half),
            np.minimum(rate, usual) / (_BEST_HALF_EFFICIENCY * peaks.half),
        ],
        axis=1,
    )
    return (named | idle) & (peaks.half > peaks.fp32), stays, True


def _find_conversions(measured: Measurements) -> _Cases:
    mask = kinds.select_classes(measured.cls, ("layout_conversion",))
    return mask, np.tile([0.3, 0.0, 0.0], (len(mask), 1)), True


def _find_strided_access(measured: Measurements) -> _Cases:
    """Find kernels whose warps touch more sectors of memory than they need."""
    estimate, sectors = measured.read("layout_speedup"), measured.read("sectors_per_request")
    is_strided = (estimate >= _MIN_SPEEDUP) | (np.isnan(estimate) & (sectors > _NEEDED_SECTORS))
    shares = [measured.read(c) for c in ("memory_share", "l1_share", "l2_share")]
    moves = np.fmax(np.fmax(shares[0], shares[1]), shares[2])
    is_strided &= ~(moves < _MOVING_SHARE)
    low, likely, high = (1 - n / sectors for n in (_NEEDED_SECTORS, _USUAL_SECTORS, _LEAST_SECTORS))
    savings = np.stack([np.where(np.isnan(estimate), s, estimate) for s in (low, likely, high)], axis=1)
    return is_strided, 1 - np.nan_to_num(savings) * _REACHED_SHARES, True


def _find_partial_warps(measured: Measurements, each: Floats) -> _Cases:
    """Find kernels whose blocks have so few threads that at least half of each warp is idle."""
    threads = measured.read("threads")
    idle = np.nan_to_num(1 - threads / (_WARP * np.ceil(threads / _WARP)))
    mask = measured.partial_warps & (measured.read("blocks") > 1) & (each > 3 * SHORT_NS)
    return mask, 1 - idle[:, None] * _REACHED_SHARES, True


def _find_small_grids(measured: Measurements, each: Floats, sm_count: int) -> _Cases:
    """Find long kernels with fewer blocks than half of the multiprocessors, apart from those of libraries."""
    blocks = measured.read("blocks")
    is_small = (blocks >= 1) & (blocks < sm_count // 2) & (each > 3 * SHORT_NS)
    is_small &= ~kinds.select_classes(measured.cls, LIBRARY_CLASSES)
    share = np.nan_to_num(blocks / max(1, sm_count), nan=1.0)
    stays = np.stack([0.3 + 0.7 * share, 0.6 * share, 0.25 * share], axis=1)
    estimate = measured.read("grid_speedup")
    is_global = measured.limits["grid_speedup_is_global"].fill_null(value=False).to_numpy()
    known = is_global & (estimate > 0)
    stays[known, 2] = np.maximum(stays[known, 2], 1 - estimate[known])
    stays[known, 1] = np.maximum(stays[known, 1], stays[known, 2])
    return is_small, stays, True


def _find_few_warps(measured: Measurements, each: Floats) -> _Cases:
    """Find kernels that wait for memory or for results, and have less than half of the possible warps.

    Nsight Compute's estimate is an upper limit, and so is the distance to the roofline.
    """
    occupancy = measured.read("occupancy")
    busy = np.fmax(
        np.fmax(measured.read("math_share"), measured.read("sm_share")),
        np.fmax(measured.read("memory_share"), np.fmax(measured.read("l1_share"), measured.read("l2_share"))),
    )
    mask = (occupancy < _FEW_WARPS) & (busy < NEAR_PEAK) & (each > 3 * SHORT_NS)
    mask &= ~kinds.select_classes(measured.cls, LIBRARY_CLASSES)
    room = 1 - np.nan_to_num(busy / NEAR_PEAK, nan=1.0)
    estimate = measured.read("warps_speedup")
    high = np.where(np.isnan(estimate), np.minimum(room, 1 - np.nan_to_num(occupancy)), np.minimum(room, estimate))
    return mask & (high > _MIN_SPEEDUP), np.stack([np.ones(len(high)), 1 - high / 3, 1 - high], axis=1), False
