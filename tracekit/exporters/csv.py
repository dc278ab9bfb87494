"""Export one CSV file per table for spreadsheets and scripts, as specified by RFC 4180 but with LF line endings.

Null is written as an empty field, and an empty string as ``""``. Integers are exact. Floats are written as the
shortest text that reads back as the same value, and binary values as hexadecimal digits. CSV files contain no types or
units. To preserve them, export Parquet or Arrow files. With the option ``spreadsheet=yes``, an apostrophe precedes
strings that a spreadsheet would interpret as formulas.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.registry.analyses import Option
from tracekit.registry.interface import Exporter, ignore_progress
from tracekit.registry.tables import read_chunks
from tracekit.system import targets
from tracekit.system.forks import check_polars_can_run
from tracekit.text import escape_formulas

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pyarrow as pa

    from tracekit.registry.analyses import Value
    from tracekit.registry.interface import ManyTraces, Progress
    from tracekit.registry.tables import Tables

BATCH_ROWS = 1 << 18
BATCH_BYTES = 1 << 26
"""Maximum size of the strings in a batch, unless it has only one row."""


def write_table(tables: Tables, name: str, path: Path, progress: Progress, *, options: Mapping[str, Value]) -> None:
    """Write one table to a CSV file with a header."""
    import polars as pl

    check_polars_can_run()
    table = read_chunks(tables, name)
    size = max(1, min(BATCH_ROWS, BATCH_BYTES // max(_compute_max_string_bytes(table), 1)))
    with path.open("wb") as file:  # polars cannot open paths that are not UTF-8
        for offset in range(0, max(table.num_rows, 1), size):
            frame = pl.DataFrame(table.slice(offset, size)).with_columns(pl.col(pl.Binary).bin.encode("hex"))
            batch = escape_formulas(frame) if options["spreadsheet"] else frame
            batch.lazy().sink_csv(file, maintain_order=True, include_header=not offset)
            progress(min(offset + size, table.num_rows), table.num_rows)


def write_many_tables(
    traces: ManyTraces, files: Mapping[str, Path], progress: Progress, *, options: Mapping[str, Value]
) -> None:
    """Write tables of several traces, by appending the rows of each trace in turn."""
    for number, tables in enumerate(traces.iterate_tables(progress)):
        for name, file in files.items():
            if not number:
                write_table(tables, name, file, ignore_progress, options=options)
                continue
            with targets.create_workspace(file.parent) as folder:
                rows = folder / file.name
                write_table(tables, name, rows, ignore_progress, options=options)
                with rows.open("rb") as source, file.open("ab") as target:
                    source.readline()
                    shutil.copyfileobj(source, target)


def _compute_max_string_bytes(table: pa.Table) -> int:
    """Return the sum of the lengths of the longest string of each dictionary-encoded column, which rows can share."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    for column in table.columns:
        if pa.types.is_dictionary(column.type):
            lengths = (pc.max(pc.binary_length(chunk.dictionary)).as_py() for chunk in column.chunks)
            total += max((length for length in lengths if length), default=0)
    return total


def is_own_file(path: Path) -> bool:
    """Return whether this exporter probably wrote a file: the file has the name and header of a declared table.

    The tables of a set of traces have the additional first column ``rank``.
    """
    table = schemas.tables().get(path.stem)
    if path.suffix != ".csv" or table is None:
        return False
    of_set = ["rank", *("recorded_rank" if name == "rank" else name for name in table.names)]
    headers = [",".join(names).encode() for names in (table.names, of_set)]
    try:
        with path.open("rb") as file:
            start = file.read(max(map(len, headers)) + 1)
    except OSError:
        return False
    return any(start[: len(header) + 1].rstrip(b",\r\n") == header for header in headers)


EXPORTER = Exporter(
    "csv",
    "CSV with a header, one file per table",
    (".csv",),
    write_table=write_table,
    write_many_tables=write_many_tables,
    options=(
        Option(
            "spreadsheet",
            "yes or no (default): put an apostrophe before strings that look like formulas",
            "flag",
            default=False,
        ),
    ),
    wrote=is_own_file,
)
