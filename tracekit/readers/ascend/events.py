"""Read the events of a timeline into one frame."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.readers.common.builders import TableBuilder
from tracekit.readers.common.json.document import Document, DocumentFormat
from tracekit.readers.common.json.scanner import AS_STRING, THOUSANDTHS, JsonCells, JsonScanner
from tracekit.readers.common.json.stream import Stream

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.readers.common.budget import Budget
    from tracekit.system.files import InputFile

EXPORT_AGAIN = "export the timeline again"
MAX_TIME_NS = 1 << 62
_INTEGERS = {
    "pid": 4,
    "tid": 5,
    "ts": 6,
    "dur": 7,
    "connection_id": 9,
    "Physic Stream Id": 10,
    "Thread Id": 12,
    "size(Byte)": 14,
}
_TEXTS = {"ph": 1, "cat": 2, "name": 3, "id": 8, "Task Type": 11, "args.name": 13, "labels": 15}
_KEYS = {
    (0, "args"): 0,
    **{(0, name): _TEXTS[name] for name in ("ph", "cat", "name")},
    (0, "id"): _TEXTS["id"] + AS_STRING,
    **{(0, name): _INTEGERS[name] for name in ("pid", "tid")},
    **{(0, name): _INTEGERS[name] + THOUSANDTHS for name in ("ts", "dur")},
    **{(1, name): _INTEGERS[name] for name in ("connection_id", "Physic Stream Id", "Thread Id", "size(Byte)")},
    (1, "Task Type"): _TEXTS["Task Type"],
    (1, "name"): _TEXTS["args.name"],
    (1, "labels"): _TEXTS["labels"],
}
_FEW_ROWS = 1 << 10


class AscendEvents(NamedTuple):
    """The events of a timeline.

    Attributes:
        frame: One row per event, with the columns of ``_INTEGERS`` and ``_TEXTS`` and the arguments as JSON (``args``).
        document: The document that was read.
        damage: What is wrong with the compressed data, or None.
    """

    frame: pl.DataFrame
    document: Document
    damage: str | None


def read_events(path: Path, file: InputFile, budget: Budget) -> AscendEvents:
    """Read all events of a timeline. Times are in ns."""
    scanner, builder = JsonScanner(_KEYS), TableBuilder(_FEW_ROWS)
    layout = DocumentFormat("traceEvents", "events", EXPORT_AGAIN)
    with Stream(file, compressed=file.read(0, 2) == b"\x1f\x8b") as stream:
        document = Document(path, stream, scanner, layout)
        for _ in document.parse_in_batches():
            cells = JsonCells(scanner, Counter())
            every = np.arange(cells.rows)
            batch: dict[str, pa.Array] = {n: cells.get_member_integers(slot, every) for n, slot in _INTEGERS.items()}
            batch |= {n: cells.get_member_strings(s, every, include_other_types=True) for n, s in _TEXTS.items()}
            batch["args"] = cells.format_nested_json(every)
            budget.reserve(sum(column.nbytes for column in batch.values()), 2, "bytes of events")
            builder.append(batch)
        damage = stream.damage
    columns = builder.finish()
    if not columns:
        types = dict.fromkeys(_INTEGERS, pl.Int64) | dict.fromkeys((*_TEXTS, "args"), pl.String)
        return AscendEvents(pl.DataFrame(schema=types), document, damage)
    return AscendEvents(pl.DataFrame({name: _convert(column) for name, column in columns.items()}), document, damage)


def _convert(column: pa.Array | pa.ChunkedArray) -> pl.Series:
    return pl.Series(column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column)
