"""Build ranges from the annotations of a program, such as its optimizer steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from tracekit.readers.common.columns import build_number_array
from tracekit.readers.common.pickles import decode_texts
from tracekit.readers.common.slices import match_slices

if TYPE_CHECKING:
    from collections import Counter

    from tracekit.readers.common.budget import Budget
    from tracekit.readers.common.pickles import CellArray, Values

_ROW_BYTES = 200
_START, _END = "START", "END"


def read_annotations(values: Values, annotations: CellArray, budget: Budget, unknown: Counter[str]) -> pl.DataFrame:
    """Return one row per annotation, with the columns ``stage``, ``name``, ``device`` and ``time_us``.

    Raises:
        Damage: An annotation is invalid, or the annotations exceed the memory budget.
    """
    budget.reserve(len(annotations), _ROW_BYTES, "annotations")
    cells = values.columns(annotations, ("stage", "name", "device", "time_us"), "annotations", unknown)
    frame = {}
    for key in ("stage", "name"):
        frame[key] = pl.Series(decode_texts(values.encode(values.find_strings(cells[key], key))))
    for key in ("device", "time_us"):
        numbers, valid = values.integers(cells[key], key)
        frame[key] = pl.Series(build_number_array(numbers, valid))
    return pl.DataFrame(frame)


def build_ranges(annotations: pl.DataFrame, undecoded: Counter[str]) -> pl.DataFrame:
    """Pair the starts and ends of annotations with the same name and device. Equal annotations nest.

    Args:
        annotations: Annotations, as ``read_annotations`` returns them.
        undecoded: Counter to which the ends without a start, and annotations without time, are added.

    Returns:
        The ranges by start, with the columns ``name``, ``start_us`` and ``end_us``.
    """
    is_known = pl.col("stage").is_in((_START, _END)) & pl.col("time_us").is_not_null()
    timed = annotations.filter(is_known).with_row_index("row")
    undecoded["annotations without a stage or time"] += annotations.height - timed.height
    track = pl.struct("device", "name").rank("dense").cast(pl.Int64)
    ordered = timed.with_columns(track=track).sort("track", "time_us", "row")
    matched = match_slices(ordered["track"].to_numpy(), (ordered["stage"] == _END).to_numpy())
    undecoded["ends of annotations that started before the recording"] += int(matched.is_unmatched.sum())
    ends = pl.Series("end", matched.ends)
    paired = ordered.with_columns(end_us=pl.col("time_us").gather(pl.when(ends >= 0).then(ends)))
    return paired.filter(stage=_START).sort("time_us", "row").select("name", "end_us", start_us="time_us")
