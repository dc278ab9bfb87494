"""CSV (RFC 4180, lines end in LF): one file a table, for spreadsheets and scripts.

A null is an empty field and an empty string is ``""``. Integers are exact, floats the shortest text that reads back the
same, bytes are hexadecimal; types and units are not kept: take Parquet or Arrow for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.forks import check_polars
from tracekit.registry import Exporter

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.registry import Progress, View


def write_table(view: View, name: str, path: Path, progress: Progress) -> None:
    """Write one table with a header line."""
    import polars as pl

    check_polars()
    frame = pl.DataFrame(view.pieces(name))
    frame.lazy().with_columns(pl.col(pl.Binary).bin.encode("hex")).sink_csv(path, maintain_order=True)
    progress(frame.height, frame.height)


EXPORTER = Exporter("csv", "CSV with a header, one file a table", (".csv",), write_table=write_table)
