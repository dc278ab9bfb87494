"""CSV (RFC 4180, lines end in LF): one file a table, for spreadsheets and scripts.

A null is an empty field and an empty string is ``""``. Integers are exact, floats the shortest text that reads back the
same, bytes are hexadecimal; types and units are not kept: take Parquet or Arrow for that. With the option
``spreadsheet=yes`` a text that a spreadsheet would take for a formula gets an apostrophe before it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit import schemas
from tracekit.errors import UnknownFormatError
from tracekit.forks import check_polars
from tracekit.registry import Exporter
from tracekit.text import without_formulas

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.registry import Progress, View

OPTIONS = {"spreadsheet": "yes puts an apostrophe before text that looks like a formula; no if left out"}


def write_table(view: View, name: str, path: Path, progress: Progress, *, spreadsheet: bool = False) -> None:
    """Write one table with a header line."""
    import polars as pl

    check_polars()
    frame = pl.DataFrame(view.chunked_table(name)).with_columns(pl.col(pl.Binary).bin.encode("hex"))
    with path.open("wb") as file:  # a path that is not UTF-8 means nothing to polars
        (without_formulas(frame) if spreadsheet else frame).lazy().sink_csv(file, maintain_order=True)
    progress(frame.height, frame.height)


def wrote(path: Path) -> bool:
    """Return whether a file is a table of this exporter: its name and its header are those of a declared table."""
    table = schemas.tables().get(path.stem)
    if path.suffix != ".csv" or table is None:
        return False
    header = ",".join(table.names).encode()
    try:
        with path.open("rb") as file:
            return file.read(len(header) + 1).rstrip(b",\r\n") == header
    except OSError:
        return False


def _configured(options: Mapping[str, str]) -> Exporter:
    """Set options.

    Raises:
        UnknownFormatError: One has no such value.
    """
    value = options.get("spreadsheet", "no")
    if value not in ("yes", "no"):
        raise UnknownFormatError(f"spreadsheet={value!r} is unknown", hint="spreadsheet: yes, no")
    return Exporter(
        "csv",
        "CSV with a header, one file a table",
        (".csv",),
        write_table=functools.partial(write_table, spreadsheet=value == "yes"),
        options=OPTIONS,
        configure=_configured,
        wrote=wrote,
    )


EXPORTER = _configured({})
