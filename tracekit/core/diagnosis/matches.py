"""Select the events of a model to which an edit of ``what-if`` applies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from tracekit.core.categorical import decode_categories, match_categories_expr
from tracekit.core.diagnosis.cures import deduplicate
from tracekit.core.diagnosis.events import convert_to_label_expr
from tracekit.errors import create_choices_hint
from tracekit.system.sorting import create_series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from tracekit.core.diagnosis.cures import Cure
    from tracekit.core.diagnosis.edits import SizeLimit, StepEdit
    from tracekit.core.diagnosis.inspection import Inspection
    from tracekit.core.diagnosis.model import Model

    Int64s = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Mask = npt.NDArray[np.bool_]

_SHOWN_CHARS, _MAX_NAMES = 100, 10_000
_VERSION = r"(?:_v\d+)?"
_COMPARISONS: dict[str, Callable[[Int64s, int], Mask]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


class Part(NamedTuple):
    """Selected items or operations of a model.

    Attributes:
        rows: Their rows. A row may occur several times with different shares.
        share: Share of the time of each of them that is selected.
        group: Number of the occurrence to which each of them belongs. If a time is set, it is that of an occurrence.
    """

    rows: Int64s
    share: Floats
    group: Int64s

    @classmethod
    def create(cls, rows: Int64s, group: Int64s | None = None) -> Part:
        """Return a part of which the whole time is selected."""
        return cls(rows, np.ones(len(rows)), rows if group is None else group)


EMPTY = Part.create(np.zeros(0, np.int64))


class Selection(NamedTuple):
    """What an edit selects.

    Attributes:
        occurrences: Number of kernels, copies, calls or ranges that are selected.
        items: What is selected on the CPU.
        operations: What is selected on the GPU.
    """

    occurrences: int
    items: Part
    operations: Part


def select_events(inspection: Inspection, cures: Sequence[Cure], edit: StepEdit) -> Selection:
    """Return the events of a model that an edit selects, on the sides that it changes.

    Args:
        inspection: The model.
        cures: The cures of all causes in the model.
        edit: The edit.
    """
    if edit.target == "cause":
        selection = _select_cures(inspection, [cure for cure in cures if cure.cause == edit.pattern])
    elif edit.target == "range":
        selection = _select_ranges(inspection.model, edit.pattern)
    elif edit.target == "call":
        selection = _select_calls(inspection.model, edit.pattern)
    else:
        selection = _select_operations(inspection, edit)
    if edit.side == "cpu":
        return selection._replace(operations=EMPTY)
    return selection._replace(items=EMPTY) if edit.side == "gpu" else selection


def _select_cures(inspection: Inspection, cures: Sequence[Cure]) -> Selection:
    items = np.concatenate([EMPTY.rows, *(cure.item_rows for cure in cures)])
    operations = np.concatenate([EMPTY.rows, *(cure.operation_rows for cure in cures)])
    count = sum(inspection.count_occurrences(cure) for cure in cures)
    return Selection(count, Part.create(items), Part.create(operations))


def _select_operations(inspection: Inspection, edit: StepEdit) -> Selection:
    """Select kernels or copies. On the CPU, these are the calls that launch only one of them, and the code before."""
    model = inspection.model
    table = "kernels" if edit.target == "kernel" else "memcpys"
    tables = model.events.operations["table"].gather(create_series(model.operations.row))
    mask = (tables == table).to_numpy()
    if edit.pattern:
        mask &= _match_names(model.names, edit.pattern, flags="i" if edit.target == "copy" else "")
    if edit.is_pageable:
        mask &= model.sizes["pageable"].to_numpy()
    mask &= _match_sizes(model, edit.sizes)
    rows = np.flatnonzero(mask)
    items = inspection.find_launch_items(rows)
    return Selection(len(rows), Part.create(items, inspection.find_next_launches(items)), Part.create(rows))


def _match_sizes(model: Model, limits: Sequence[SizeLimit]) -> Mask:
    """Return which operations satisfy conditions on their sizes. An unknown size satisfies none."""
    result = np.ones(len(model.operations.row), np.bool_)
    if limits:
        result &= model.sizes["bytes"].is_not_null().to_numpy()
    for limit in limits:
        result &= _COMPARISONS[limit.comparison](model.bytes, limit.bytes)
    return result


def _select_calls(model: Model, pattern: str) -> Selection:
    """Select API calls and the operations that they launch. The version at the end of a name can be omitted."""
    items, ops = model.items, model.operations
    matches = _match_names(model.events.calls["name"], pattern, _VERSION)
    selected = np.zeros(len(items.call), np.bool_)
    is_call = items.call >= 0
    selected[is_call] = matches[items.call[is_call]]
    rows = np.flatnonzero(selected & (items.lane == 0))
    launched = np.flatnonzero(selected[ops.item])
    count = len(deduplicate(np.concatenate([rows, ops.item[launched]])))
    return Selection(count, Part.create(rows), Part.create(launched, ops.item[launched]))


def _select_ranges(model: Model, pattern: str) -> Selection:
    """Select what the launching thread does in ranges, and the operations that it launches there.

    Ranges within other selected ranges are part of these.
    """
    starts, ends = _find_occurrences(model, pattern)
    items, ops = model.items, model.operations
    main = np.flatnonzero(items.lane == 0)
    start, end = items.start[main], items.end[main]
    first = np.searchsorted(end, starts, side="right")
    counts = np.maximum(np.searchsorted(start, ends, side="left") - first, 0)
    occurrence = np.repeat(np.arange(len(starts)), counts)
    position = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(len(occurrence))
    inside = np.minimum(end[position], ends[occurrence]) - np.maximum(start[position], starts[occurrence])
    length = end[position] - start[position]
    share = np.where(length > 0, inside / np.maximum(length, 1), 1.0)
    launched = items.start[ops.item]
    latest = np.searchsorted(starts, launched, side="right") - 1
    is_inside = (latest >= 0) & (items.lane[ops.item] == 0)
    if len(ends):
        is_inside &= launched < ends[np.maximum(latest, 0)]
    operations = np.flatnonzero(is_inside)
    return Selection(
        len(starts),
        Part(main[position], share, occurrence),
        Part.create(operations, latest[operations].astype(np.int64)),
    )


def _find_occurrences(model: Model, pattern: str) -> tuple[Int64s, Int64s]:
    """Return the starts and ends of the outermost ranges with matching names in the steps, as disjoint intervals."""
    ranges = model.events.ranges
    regex = _convert_glob(pattern)
    matches = match_categories_expr(
        pl.col("name"), lambda text: text.str.contains(regex) | convert_to_label_expr(text).str.contains(regex)
    )
    first, last = model.steps[0].start_ns, model.steps[-1].end_ns
    rows = ranges.filter(matches & (pl.col("end_ns") > first) & (pl.col("start_ns") < last))
    rows = rows.sort("start_ns", "end_ns", descending=[False, True])
    start, end = np.maximum(rows["start_ns"].to_numpy(), first), np.minimum(rows["end_ns"].to_numpy(), last)
    latest = np.concatenate([np.full(min(1, len(end)), first), np.maximum.accumulate(end)[:-1]])
    start = np.maximum(start, latest)
    return start[end > start], end[end > start]


def _convert_glob(pattern: str, suffix: str = "", flags: str = "") -> str:
    """Return the regular expression for a pattern with ``*`` and ``?``."""
    return f"(?s{flags})^{re.escape(pattern).replace(chr(92) + '*', '.*').replace(chr(92) + '?', '.')}{suffix}$"


def _match_names(names: pl.Series, pattern: str, suffix: str = "", flags: str = "") -> Mask:
    """Return which names a pattern matches. A null matches nothing."""
    regex = _convert_glob(pattern, suffix, flags)
    matches = match_categories_expr(pl.col("name"), lambda text: text.str.contains(regex))
    return names.to_frame("name").select(matches).to_series().to_numpy()


def create_matches_hint(inspection: Inspection, cures: Sequence[Cure], edit: StepEdit, selection: Selection) -> str:
    """Return what to do about an edit that changes nothing."""
    if selection.occurrences:
        others = "gpu" if edit.side == "cpu" else "cpu"
        return f"what it selects has no work of its own on the {edit.side}: write on {others}, or on both"
    model = inspection.model
    if edit.target == "cause":
        return create_choices_hint("causes of this capture", sorted({cure.cause for cure in cures}), edit.pattern)
    if edit.target == "range":
        named = model.events.ranges["name"]
    elif edit.target == "call":
        named = model.events.calls["name"]
    else:
        table = "kernels" if edit.target == "kernel" else "memcpys"
        named = model.events.operations.filter(pl.col("table") == table)["name"]
    names = decode_categories(named.unique()).drop_nulls().sort().head(_MAX_NAMES)
    shown = [name if len(name) <= _SHOWN_CHARS else f"{name[:_SHOWN_CHARS]}…" for name in names]
    kinds = {"kernel": "kernels", "range": "ranges", "call": "calls", "copy": "kinds of copies"}
    return create_choices_hint(kinds[edit.target], shown, edit.pattern.strip("*?"))
