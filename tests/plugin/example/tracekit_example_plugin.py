"""A plug-in of tracekit: reads and writes ``.lines`` files, one NVTX range a line.

A file begins with ``#lines``; a line is ``START END NAME``, in nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tracekit as tk

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from tracekit.registry import Progress, Source, View

MAGIC = b"#lines\n"


def sniff(source: Source) -> bool:
    """Tell whether a file is of this format, by its content alone."""
    return source.head.startswith(MAGIC)


def open_(source: Source) -> dict[str, pa.Table]:
    """Read a file: tables by name, with their declared columns."""
    import pyarrow as pa
    from tracekit import schemas

    lines = source.path.read_text("utf-8").splitlines()[1:]
    ranges = [_range(i, line, source) for i, line in enumerate(lines, start=1)]
    return {"nvtx_ranges": pa.Table.from_pylist(ranges, schemas.arrow_schema(schemas.table("nvtx_ranges")))}


def write(trace: View, path: Path, progress: Progress) -> None:
    """Write the ranges of a trace to a path that does not exist yet."""
    ranges = trace.frame("nvtx_ranges").select("start_ns", "end_ns", "name").drop_nulls().collect()
    with path.open("w", encoding="utf-8") as file:
        file.write(MAGIC.decode())
        for done, (start, end, name) in enumerate(ranges.iter_rows(), start=1):
            file.write(f"{start} {end} {name}\n")
            progress(done, ranges.height)


def _range(number: int, line: str, source: Source) -> dict[str, object]:
    try:
        start, end, name = line.split(" ", 2)
        return {
            "range_id": number,
            "start_ns": int(start),
            "end_ns": int(end),
            "kind": "push_pop",
            "domain_id": 0,
            "name": name,
        }
    except ValueError as e:
        raise tk.errors.CorruptTraceError(
            "is not START END NAME", path=source.path, table="nvtx_ranges", row=number
        ) from e


READER = tk.Reader("lines", "Ranges as lines of text", (".lines",), sniff, open_)
EXPORTER = tk.Exporter("lines", "Ranges as lines of text", (".lines",), write=write)
