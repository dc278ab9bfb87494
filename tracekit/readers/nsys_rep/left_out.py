"""Events that a table leaves out because it is not known what they are: counted by name, so that a warning can say so.

What is known to be no row of a declared table (see ``names``) is not counted here.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tracekit.readers.common.protobuf.decoding import decode
from tracekit.readers.nsys_rep import entries, layout, names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracekit.readers.common.protobuf.decoding import Field, Mask, Places
    from tracekit.readers.nsys_rep.events import Chosen
    from tracekit.readers.nsys_rep.layout import EventTable

_CLASSES = np.array(sorted(names.KNOWN_CLASSES), np.uint64)
TABLES = {
    layout.API: "api_calls and osrt_calls",
    layout.GPU: "the tables of GPU activities",
    layout.NVTX: "nvtx_ranges and nvtx_marks",
    entries.GENERIC: "gpu_metrics",
}
"""The declared tables that events of a payload may belong to."""


def rows(chosen: Chosen, top: Mapping[int, Field], table: EventTable, kept: Places | None) -> Counter[str]:
    """Count the events among n that are no rows of a table and of which it is not known what they are.

    Args:
        chosen: The events.
        top: Their fields: the class, or the parts that tell of which table they are.
        table: The table.
        kept: Those that are rows of it; None if all.
    """
    if kept is None or table.payload not in TABLES:
        return Counter()
    rest = np.ones(len(chosen.starts), np.bool_)
    rest[kept] = False
    others = np.flatnonzero(rest)
    return _calls(top.get(layout.CLASS), others) if table.event_classes else _activities(chosen, top, table, others)


def _calls(classes: Field | None, rows: Places) -> Counter[str]:
    """Count calls of classes that are not known."""
    if classes is None:
        return Counter({names.WITHOUT_CLASS: len(rows)} if len(rows) else {})
    valid = np.ones(len(rows), np.bool_) if classes.valid is None else classes.valid[rows]
    values = classes.values[rows]
    unknown, counts = np.unique_counts(values[valid & ~np.isin(values, _CLASSES)])
    found = {names.class_called(c): n for c, n in zip(unknown.tolist(), counts.tolist(), strict=True)}
    return +Counter({names.WITHOUT_CLASS: int(np.count_nonzero(~valid)), **found})


def _activities(chosen: Chosen, top: Mapping[int, Field], table: EventTable, rows: Places) -> Counter[str]:
    """Count activities that hold nothing that makes them a row of any table, of this one's types and of others."""
    if not table.expected_types:
        return Counter()
    types = chosen.types(rows)
    mine, unknown = np.isin(types, table.expected_types), ~np.isin(types, names.GPU_TYPES)
    empty = _without(top, table.sibling_parts, rows) & mine
    if unknown.any():
        some = rows[unknown]
        parts = decode(chosen.buffer, chosen.starts[some], chosen.stops[some], layout.ACTIVITIES)
        empty[unknown] = _without(parts, layout.ACTIVITIES, np.arange(len(some)))
    listed, counts = np.unique_counts(types[empty])
    return Counter({names.activity_called(t): n for t, n in zip(listed.tolist(), counts.tolist(), strict=True)})


def _without(found: Mapping[int, Field], wanted: Sequence[int], rows: Places) -> Mask:
    """Say of some rows which have none of some fields."""
    empty = np.ones(len(rows), np.bool_)
    for number in wanted:
        field = found.get(number)
        if field is not None:
            empty &= False if field.valid is None else ~field.valid[rows]
    return empty


def of_types(counts: Mapping[int, int]) -> Iterator[tuple[int, int, str]]:
    """Find types of calls and of NVTX events that are not known: the payload, how many, and their name."""
    for kind, number in counts.items():
        if kind in (entries.GENERIC, entries.UNKNOWN):
            continue
        payload, event_type = entries.parts_of(kind)
        if payload in (layout.API, layout.NVTX) and (payload, event_type) not in names.KNOWN_TYPES:
            yield payload, number, names.type_called(payload, event_type)
