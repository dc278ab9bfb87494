"""Write the rows of a table that match its filters to a file that the browser downloads."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl

import polars as pl

from tracekit.errors import TracekitError, create_choices_hint
from tracekit.text import escape_formulas
from tracekit.view import query as queries
from tracekit.view.state import parse_aggregation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tracekit.view.captures import ViewedCaptures

MAX_SHEET_ROWS = 1_048_575
"""Maximum number of rows of an Excel sheet, without the heading."""
MAX_CELL_TEXT = 32_767
"""Maximum number of characters in a cell of an Excel sheet."""


class Download(NamedTuple):
    """A file to download: its content, media type and name."""

    content: bytes
    media_type: str
    name: str


def export_rows(captures: ViewedCaptures, parameters: Mapping[str, str]) -> Download:
    """Return a file with the visible columns of the filtered and sorted rows of a table.

    Args:
        captures: The captures of the server.
        parameters: The URL parameters ``table``, ``at``, ``arguments``, ``format``, ``filter``, ``sort``, ``search``,
            ``condition`` and ``columns``.

    Raises:
        TracekitError: A parameter is not valid, or the format cannot hold the rows.
    """
    query, frame = _read_query_and_rows(captures, parameters)
    write, media_type, suffix = FORMATS[parameters["format"]]
    name = re.sub(r"[^\w.-]+", "_", f"{captures[query.at].name.partition('.')[0]}_{query.table}")
    return Download(write(frame), media_type, f"{name}{suffix}")


def _read_query_and_rows(captures: ViewedCaptures, parameters: Mapping[str, str]) -> tuple[queries.Query, pl.DataFrame]:
    """Return the query of a download and the rows that match it.

    Raises:
        TracekitError: A parameter is not valid.
    """
    if parameters.get("format", "") not in FORMATS:
        raise TracekitError(
            f"tables cannot be downloaded in the format {parameters.get('format', '')[:100]!r}",
            hint=create_choices_hint("formats", FORMATS, parameters.get("format", "")),
        )
    at = parse_aggregation(dict(parse_qsl(parameters.get("at", ""))), len(captures))
    query = queries.Query(
        parameters.get("table", ""),
        at,
        tuple(sorted(parse_qsl(parameters.get("arguments", ""), keep_blank_values=True))),
        filter=parameters.get("filter") or "{}",
        sort=parameters.get("sort", ""),
        search=parameters.get("search", ""),
        condition=parameters.get("condition", ""),
    )
    frame = queries.read_matching_frame(captures, query)
    selected = [c for c in parameters.get("columns", "").split(",") if c in frame.columns]
    return query, frame.select(selected or frame.columns)


def _to_csv(frame: pl.DataFrame) -> bytes:
    """Return rows as CSV."""
    return escape_formulas(_serialize_nested_values(frame)).write_csv().encode()


def _to_tsv(frame: pl.DataFrame) -> bytes:
    """Return rows as tab-separated values for the clipboard. Tabs and line breaks in values become spaces."""
    flat = escape_formulas(_serialize_nested_values(frame))
    text = [c for c, kind in flat.schema.items() if kind == pl.String]
    return (
        flat.with_columns(pl.col(text).str.replace_all(r"[\t\r\n]", " "))
        .write_csv(separator="\t", quote_style="never")
        .encode()
    )


def _to_json(frame: pl.DataFrame) -> bytes:
    """Return rows as a JSON array of objects. Integers are exact, and booleans are ``true`` and ``false``."""
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String)).write_json().encode()


def _to_parquet(frame: pl.DataFrame) -> bytes:
    """Return rows as Parquet, with their exact types."""
    sink = io.BytesIO()
    frame.write_parquet(sink)
    return sink.getvalue()


def _to_excel(frame: pl.DataFrame) -> bytes:
    """Return rows as an Excel workbook. No string is interpreted as a formula.

    Columns with infinite numbers, or with integers that Excel would round, are written as text. NaN becomes an empty
    cell. Text that is too long for a cell is truncated, and a second sheet lists the columns with truncated text.

    Raises:
        TracekitError: There are more rows than a sheet can have.
    """
    from xlsxwriter import Workbook

    if frame.height > MAX_SHEET_ROWS:
        message = f"{frame.height:,} rows match, but an Excel sheet has at most {MAX_SHEET_ROWS:,} rows"
        raise TracekitError(message, hint="export the table as CSV or Parquet")
    flat = _serialize_nested_values(frame)
    exact = [
        c for c in flat.columns if flat.schema[c].is_integer() and flat.height and _has_integer_above(flat[c], 10**15)
    ]
    exact += [c for c in flat.columns if flat.schema[c].is_float() and flat[c].is_infinite().any()]
    flat = flat.with_columns(pl.selectors.float().fill_nan(None))
    flat = flat.with_columns(pl.col(exact).cast(pl.String), pl.col(pl.Categorical).cast(pl.String))
    long = {c: int((flat[c].str.len_chars() > MAX_CELL_TEXT).sum()) for c, t in flat.schema.items() if t == pl.String}
    truncated = {c: number for c, number in long.items() if number}
    flat = flat.with_columns(pl.col(truncated).str.slice(0, MAX_CELL_TEXT))
    sink = io.BytesIO()
    options = {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False}
    with Workbook(sink, options) as workbook:
        flat.write_excel(workbook, worksheet="rows", autofit=False)
        if truncated:
            text = f"cells truncated to {MAX_CELL_TEXT:,} characters, which is the limit of Excel"
            notes = pl.DataFrame({"column": list(truncated), text: list(truncated.values())})
            notes.write_excel(workbook, worksheet="truncated", autofit=True)
    return sink.getvalue()


def _has_integer_above(column: pl.Series, limit: int) -> bool:
    """Return whether a column has an integer whose absolute value exceeds a limit."""
    low, high = column.min(), column.max()
    return isinstance(low, int) and isinstance(high, int) and (low < -limit or high > limit)


def _serialize_nested_values(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows with nested values serialized as JSON."""
    nested = [c for c, kind in frame.schema.items() if kind.is_nested()]
    texts = [
        pl.Series(c, [None if v is None else json.dumps(v, default=str) for v in frame[c].to_list()], pl.String)
        for c in nested
    ]
    return frame.with_columns(texts)


FORMATS: Mapping[str, tuple[Callable[[pl.DataFrame], bytes], str, str]] = {
    "csv": (_to_csv, "text/csv", ".csv"),
    "tsv": (_to_tsv, "text/plain", ".tsv"),
    "json": (_to_json, "application/json", ".json"),
    "parquet": (_to_parquet, "application/vnd.apache.parquet", ".parquet"),
    "xlsx": (_to_excel, "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", ".xlsx"),
}
