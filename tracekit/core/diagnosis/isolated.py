"""Explain the kernels of a report of Nsight Compute, which measures single kernels and no steps.

The ledger divides the time of the measured kernels by class. Each kernel belongs to at most one cause, and nothing is
replayed: what a cure saves of a kernel is a share of the time of all kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

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
from tracekit.core.diagnosis.measured import (
    LIBRARY_CLASSES,
    LIMITS,
    SHORT_NS,
    Measurements,
    find_device_name,
    read_measurements,
)
from tracekit.core.ncu.roofline import NEAR_PEAK
from tracekit.core.series import decode_categories, map_categories_expr
from tracekit.system.sorting import create_series
from tracekit.text import format_duration, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from tracekit.core.correlate import Frames

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

TABLE = "ncu_launches"
SCOPE = "only isolated kernels were measured, so the time between them, and what runs beside them, is unknown"
_MAX_ROW_IDS, _MAX_ROW_NAMES = 100, 16
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
    ranges = frames("ncu_nvtx_ranges").select(pl.col("name").unique()).drop_nulls().collect().to_series()
    framework = find_framework(ranges.cast(pl.String), names)
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
    longest, names = int(rows[np.argmax(own)]), _list_names(measured, rows)
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
        rows=(Rows(TABLE, tuple(ids.head(_MAX_ROW_IDS).to_list()), len(ids), names[:_MAX_ROW_NAMES], len(names)),),
        change=causes.get_change(part.change or part.cause, framework),
        check=_CHECK if part.cause not in LIMITS else "",
        saving=SavingOfCause(low, likely, high),
        after=likely,
        status="unsure" if part.missing else "answered",
        missing=part.missing,
    )


def _list_names(measured: Measurements, rows: Int64s) -> tuple[str, ...]:
    """Return the names of kernels, the most frequent first."""
    names = measured.limits["name"].gather(create_series(rows)).cast(pl.String).drop_nulls().value_counts()
    return tuple(names.sort("count", "name", descending=[True, False])["name"])


def _describe_evidence(part: _Part, measured: Measurements, own: Int64s, longest: int) -> str:
    """Return what was counted, the longest kernel, its metrics, and what Nsight Compute's rules estimate."""
    name = str(measured.limits["name"].cast(pl.String)[longest] or "?")
    text = f"{len(own):,} of {measured.limits.height:,} kernels {part.evidence}, for {format_duration(int(own.sum()))}"
    text += f"; the longest is {shorten_middle(name)}"
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
