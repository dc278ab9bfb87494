"""Read and write ``.lines`` files, which have one NVTX range per line.

A file begins with ``#lines``. Each following line is ``START END NAME``, with times in nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tracekit as tk
from tracekit.registry import scan_table

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from tracekit.registry import Progress, Source, View

MAGIC = b"#lines\n"


def sniff(source: Source) -> bool:
    """Return whether the content of a file is in this format."""
    return source.head.startswith(MAGIC)


def open_(source: Source) -> dict[str, pa.Table]:
    """Read a file and return its tables by name, with their declared columns."""
    import pyarrow as pa
    from tracekit import schemas

    lines = source.path.read_text("utf-8").splitlines()[1:]
    ranges = [_parse_range(i, line, source) for i, line in enumerate(lines, start=1)]
    return {"nvtx_ranges": pa.Table.from_pylist(ranges, schemas.arrow_schema(schemas.table("nvtx_ranges")))}


def write(view: View, path: Path, progress: Progress) -> None:
    """Write the NVTX ranges of a trace to a new file."""
    ranges = scan_table(view.tables, "nvtx_ranges").select("start_ns", "end_ns", "name").drop_nulls().collect()
    with path.open("w", encoding="utf-8") as file:
        file.write(MAGIC.decode())
        for done, (start, end, name) in enumerate(ranges.iter_rows(), start=1):
            file.write(f"{start} {end} {name}\n")
            progress(done, ranges.height)


def _parse_range(number: int, line: str, source: Source) -> dict[str, object]:
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
            "expected a line START END NAME", path=source.path, table="nvtx_ranges", row=number
        ) from e


READER = tk.Reader("lines", "NVTX ranges as lines of text", (".lines",), sniff, open_)
EXPORTER = tk.Exporter("lines", "NVTX ranges as lines of text", (".lines",), write=write)
