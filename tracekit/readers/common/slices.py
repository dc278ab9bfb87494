"""Match the ends of slices with their beginnings, as formats of tracing tools record them on each thread or track."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

if TYPE_CHECKING:
    Int64Array = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

NONE = -1
"""Code of a missing name or category, and the end of a slice that does not end."""
_ANY = -2
_MAX_ROWS_OF_INT32 = 1 << 28


class MatchedSlices(NamedTuple):
    """The slices of some tracks.

    Attributes:
        ends: Position of the end of each beginning. It is ``NONE`` for beginnings without an end, and for ends.
        is_unmatched: For each event, whether it is an end without a beginning.
    """

    ends: Int64Array
    is_unmatched: Mask


def match_slices(tracks: Int64Array, is_end: Mask, *labels: Int64Array) -> MatchedSlices:
    """Find the end of each slice.

    An end belongs to the last open slice of its track with the same labels. A label that the end lacks is ignored, and
    so is the first label, which is the name, if the slice lacks it. All slices that began later end at the same time.

    Args:
        tracks: Number of the track of each event. The events of a track must be adjacent and in the order of time.
        is_end: For each event, whether it is the end of a slice, not the beginning.
        labels: Codes of the name and the category of each event. They are ``NONE`` for events without one.
    """
    result = _match_nested(tracks, is_end)
    begins = np.flatnonzero(result.ends >= 0)
    ends = result.ends[begins]
    differs = np.zeros(len(begins), np.bool_)
    for nth, codes in enumerate(labels):
        differs |= (codes[ends] != NONE) & (codes[begins] != codes[ends]) & ((codes[begins] != NONE) | (nth > 0))
    for track in np.unique(tracks[begins[differs]]).tolist():
        first, stop = np.searchsorted(tracks, (track, track + 1)).tolist()
        _match_by_labels(result, is_end, labels, first, stop)
    return result


def _match_nested(tracks: Int64Array, is_end: Mask) -> MatchedSlices:
    """Match each end with the last open slice of its track. The tracks must be in ascending order."""
    rows = len(tracks)
    ends, is_unmatched = np.full(rows, NONE, np.int64), np.zeros(rows, np.bool_)
    if not rows:
        return MatchedSlices(ends, is_unmatched)
    starts = np.flatnonzero(np.append(True, tracks[1:] != tracks[:-1]))
    sizes = np.diff(np.append(starts, rows))
    dtype = np.int32 if rows < _MAX_ROWS_OF_INT32 else np.int64
    depth: npt.NDArray[Any] = np.cumsum(np.where(is_end, -1, 1).astype(dtype), dtype=dtype)
    shift: npt.NDArray[Any] = np.repeat(
        (3 * starts).astype(dtype), sizes
    )  # the heights of a track are below those of earlier tracks
    depth -= np.repeat(np.append(0, depth[starts[1:] - 1]).astype(dtype), sizes)
    depth -= shift
    np.negative(shift, out=shift)
    lowest = np.minimum(depth, shift, out=shift)
    np.minimum.accumulate(lowest, out=lowest)
    previous = np.append(dtype(1), lowest[:-1])
    previous[starts] = -3 * starts
    is_unmatched[:] = is_end & (lowest < previous)
    del previous
    depth -= lowest
    depth += is_end
    del lowest, shift
    rest = np.flatnonzero(~is_unmatched)
    order = rest[np.lexsort((depth[rest], tracks[rest]))]
    del rest
    first, second = order[:-1], order[1:]
    is_pair = ~is_end[first] & is_end[second] & (depth[first] == depth[second]) & (tracks[first] == tracks[second])
    ends[first[is_pair]] = second[is_pair]
    return MatchedSlices(ends, is_unmatched)


def _match_by_labels(
    result: MatchedSlices, is_end: Mask, labels: tuple[Int64Array, ...], first: int, stop: int
) -> None:
    """Match the events of one track, whose ends do not all have the labels of the last open slice."""
    result.ends[first:stop], result.is_unmatched[first:stop] = NONE, False
    of_events = list(zip(*(codes[first:stop].tolist() for codes in labels), strict=True))
    stack: list[int] = []
    heights: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    """Height and number of the open slices with some labels. Slices that have ended are removed when they are found."""
    for event, (ends, codes) in enumerate(zip(is_end[first:stop].tolist(), of_events, strict=True), first):
        if not ends:
            for key in _list_keys(codes):
                heights.setdefault(key, []).append((len(stack), event))
            stack.append(event)
            continue
        name, *others = (code if code != NONE else _ANY for code in codes)
        best = NONE
        for key in {(name, *others), (NONE if name != _ANY else _ANY, *others)}:
            same = heights.get(key, [])
            while same and (same[-1][0] >= len(stack) or stack[same[-1][0]] != same[-1][1]):
                same.pop()
            best = max(best, same[-1][0] if same else NONE)
        result.is_unmatched[event] = best == NONE
        for begin in stack[best:] if best != NONE else []:
            result.ends[begin] = event
        if best != NONE:
            del stack[best:]


def _list_keys(codes: tuple[int, ...]) -> set[tuple[int, ...]]:
    """Return the labels of a slice, and all combinations in which some of them are replaced by ``_ANY``."""
    keys: set[tuple[int, ...]] = {()}
    for code in codes:
        keys = {(*key, value) for key in keys for value in (code, _ANY)}
    return keys


def merge_json_objects_expr(first: str, second: str) -> pl.Expr:
    """Return the members of two JSON objects as one object. Either of them may be null."""
    both = pl.concat_str(
        pl.col(first).str.strip_chars_end(" \t\r\n").str.head(-1),
        pl.lit(","),
        pl.col(second).str.strip_chars_start(" \t\r\n").str.slice(1),
    )
    return pl.coalesce(both, first, second)
