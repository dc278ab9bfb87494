"""Collect the table rows of an Nsight Compute CSV file, and convert them to launches, metrics and rules in batches.

Consecutive rows of one launch form a *run*. Runs are assigned to launches only after the whole file has been read,
because rows of the same launch may also be on another page of the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.errors import CorruptTraceError, get_first_line_of_message
from tracekit.readers.ncu.units import find_base_unit_and_exponent
from tracekit.readers.ncu_csv.frame import (
    NEWLINE,
    build_byte_array_and_line_starts,
    double_inner_quotes,
    find_row_numbers_with_stray_quotes,
)
from tracekit.readers.ncu_csv.numbers import ENGLISH, detect_number_style, parse_numbers

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.readers.ncu_csv.frame import NcuPage
    from tracekit.readers.ncu_csv.numbers import NumberStyle

IDENTITY = {
    "ID": "source_id",
    "Process ID": "process_id",
    "Process Name": "process_name",
    "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg": "push_pop",
    "Id:Domain:Start/Stop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg": "start_end",
    "Domain": "domain",
    "Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg": "ranges",
    "Kernel Name": "name",
    "Kernel Time": "created_local",
    "Context": "context_id",
    "Stream": "stream_id",
    "Block Size": "block",
    "Grid Size": "grid",
    "Device": "device_id",
    "Device Id": "device_id",
    "CC": "cc",
    "Invocations": "invocations",
}
"""Names of the columns that identify the launch or the group of launches of a row, by their printed names."""

_LAUNCH_COLUMNS = ("source_id", "process_id")
_RULE_COLUMNS = {
    "Rule Name": "rule_id",
    "Rule Type": "type",
    "Rule Description": "message",
    "Estimated Speedup Type": "speedup_type",
    "Estimated Speedup": "speedup_percent",
}
_EXTREMES = {"minimum": "Minimum", "maximum": "Maximum"}
METRICS = pl.Schema(
    {
        "run": pl.Int64,
        "kind": pl.Int32,
        "value": pl.Float64,
        "text": pl.String,
        "resolution": pl.Float64,
        "instances": pl.Int32,
    }
)
RULES = pl.Schema({"run": pl.Int64, "section": pl.String, **dict.fromkeys(_RULE_COLUMNS.values(), pl.String)})
_IDENTITY_COLUMNS = tuple(dict.fromkeys(IDENTITY.values()))
STYLE_CELLS = 1 << 16
"""Number of cells from which the style of numbers is determined. If they are ambiguous, all cells are examined."""
BATCH_BYTES = 1 << 22
"""Number of bytes of rows that are parsed together. They may belong to consecutive tables with the same columns."""
FREE_BATCHES, BYTES_PER_BATCH = 500, 1 << 12
"""Number of batches that any file may have, and number of bytes of rows per additional batch.

The number is limited because parsing a batch takes milliseconds, even if it is tiny.
"""
FREE_CELLS, CELLS_PER_BYTE = 1 << 16, 2
"""Number of cells that any batch may have, and number of additional cells per byte of the batch."""
_AGAIN = "run ncu --csv again"
_PAGE = "page"
_NUMERIC_FIRST_COLUMNS = ("ID", "Process ID")
_FIRST_NUMBER = re.compile(rb'^"?\d+"?(?:,|$)', re.MULTILINE)


@dataclass(slots=True)
class RowCollector:
    """The metric values and rule messages in the rows of a file, collected in batches.

    A run consists of consecutive rows of the same launch.

    Attributes:
        path: The file.
        runs: Batches of runs, with the columns that identify the launch of each run.
        metrics: Batches of metric values with the columns of ``METRICS``. Batches from pages that summarize several
            launches also have the columns ``minimum`` and ``maximum``.
        rules: Batches of messages of rules with the columns of ``RULES``.
        kinds: Index of each combination of section, printed name and printed unit. The column ``kind`` contains these
            indices.
        invalid_rows: Number of rows that were skipped because they do not match their header.
        has_unitless_page: Whether a raw page lacks the row of units.
        number_style: The style in which numbers are printed, or None before it has been determined.
    """

    path: Path
    runs: list[pl.DataFrame] = field(default_factory=list)
    metrics: list[pl.DataFrame] = field(default_factory=list)
    rules: list[pl.DataFrame] = field(default_factory=list)
    kinds: dict[tuple[str | None, str, str | None], int] = field(default_factory=dict)
    invalid_rows: int = 0
    has_unitless_page: bool = False
    _run: int = 0
    number_style: NumberStyle | None = None
    _exponents: list[int] = field(default_factory=list)
    _pending_pages: list[NcuPage] = field(default_factory=list)
    _pending_texts: list[bytes] = field(default_factory=list)
    _pending_bytes: int = 0
    _parsed_batches: int = 0
    _parsed_bytes: int = 0

    def add_rows(self, page: NcuPage, text: bytes) -> None:
        """Add rows of a table to the current batch.

        A batch is parsed when it is full, or before rows of a table with a different header are added.

        Raises:
            CorruptTraceError: The columns change too often, rows have far fewer cells than their header, or rows are
                not valid CSV.
        """
        if self._pending_pages and (page.layout, page.header) != (
            self._pending_pages[0].layout,
            self._pending_pages[0].header,
        ):
            self.parse_pending_rows()
        self._pending_pages.append(page)
        self._pending_texts.append(text)
        self._pending_bytes += len(text)
        if self._pending_bytes >= BATCH_BYTES:
            self.parse_pending_rows()

    def parse_pending_rows(self) -> None:
        """Parse the rows that have been added but not parsed yet.

        Raises:
            CorruptTraceError: The columns change too often, rows have far fewer cells than their header, or rows are
                not valid CSV.
        """
        pages, texts = (
            self._pending_pages,
            [self._drop_short_rows(p, t) for p, t in zip(self._pending_pages, self._pending_texts, strict=True)],
        )
        self._pending_pages, self._pending_texts, self._pending_bytes = [], [], 0
        if not any(texts):
            return
        table = self._parse_rows(pages[0], b"".join(texts))
        lines = [text.count(b"\n") for text in texts] if len(texts) > 1 else [table.height]
        if sum(lines) == table.height:
            self._convert_and_collect_batch(pages, table, lines)
            return
        for page, text in zip(pages, texts, strict=True):
            alone = self._parse_rows(page, text)
            self._convert_and_collect_batch([page], alone, [alone.height])

    def _drop_short_rows(self, page: NcuPage, text: bytes) -> bytes:
        """Drop rows with too few cells if parsing all rows would create too many cells, and return the remaining rows.

        When a row with few cells is parsed, it takes as much memory as a complete row. The dropped rows are counted as
        invalid unless they look like other output.

        Raises:
            CorruptTraceError: Parsing the remaining rows would still create more cells than allowed.
        """
        max_cells = FREE_CELLS + CELLS_PER_BYTE * len(text)
        width = len(page.header) + 1
        if text.count(b"\n") * width <= max_cells:
            return text
        data, starts = build_byte_array_and_line_starts(text)
        enough = np.add.reduceat(
            (data == ord(",")).view(np.uint8), starts, dtype=np.int32
        ) >= _find_last_required_column_index(page)
        if np.count_nonzero(enough) * width > max_cells:
            what = f"the header of the {page.layout} page has {len(page.header)} columns, but its rows have far fewer"
            raise CorruptTraceError(what, path=self.path, hint=_AGAIN)
        ends = np.append(starts[1:], len(text))
        edges = np.flatnonzero(np.diff(enough, prepend=~enough[0])).tolist()
        runs = [text[starts[a] : ends[b - 1]] for a, b in zip(edges, [*edges[1:], len(starts)], strict=True)]
        long_runs, short_runs = runs[not enough[0] :: 2], runs[bool(enough[0]) :: 2]
        has_number_column = page.header[0] in _NUMERIC_FIRST_COLUMNS
        self.invalid_rows += sum(
            sum(1 for _ in _FIRST_NUMBER.finditer(run)) if has_number_column else run.count(b"\n") for run in short_runs
        )
        return b"".join(long_runs)

    def _convert_and_collect_batch(self, pages: list[NcuPage], table: pl.DataFrame, row_counts: list[int]) -> None:
        """Convert a batch of parsed rows, which may belong to several tables, and collect the runs, metrics and rules.

        Args:
            pages: The tables that the rows belong to, which have the same columns.
            table: The rows of all these tables, in order.
            row_counts: Number of rows of each table.
        """
        table = table.with_columns(pl.Series(_PAGE, np.repeat(np.arange(len(pages), dtype=np.int32), row_counts)))
        if pages[0].layout == "raw":
            table = self._move_units_to_pages(pages, table)
        table = self._select_rows_matching_header(pages[0], table)
        if not table.height:
            return
        run = self._assign_run_numbers(pages, table)
        if pages[0].layout == "raw":
            self._add_raw_metrics(pages, table, run)
        else:
            self._add_listed_metrics(pages[0], table, run)

    def determine_number_style(self, cells: pl.Series) -> NumberStyle:
        """Return the thousands separator and the decimal point of the numbers in the file.

        This style is detected from the first cells that show it. If neither earlier cells nor the given cells show the
        style, ``ENGLISH`` is returned.
        """
        self.number_style = (
            self.number_style or detect_number_style(cells.head(STYLE_CELLS)) or detect_number_style(cells)
        )
        return self.number_style or ENGLISH

    def _parse_rows(self, page: NcuPage, text: bytes) -> pl.DataFrame:
        """Parse rows into one string column per column of the header, and one column for an excess cell."""
        self._parsed_batches += 1
        self._parsed_bytes += len(text)
        if self._parsed_batches > FREE_BATCHES + self._parsed_bytes // BYTES_PER_BATCH:
            what = f"the columns change too often: {self._parsed_batches} times in {self._parsed_bytes} bytes of rows"
            raise CorruptTraceError(what, path=self.path, hint=_AGAIN)
        header = ",".join(map(str, range(len(page.header) + 1))).encode() + b"\n"
        if stray_rows := find_row_numbers_with_stray_quotes(text):
            text = double_inner_quotes(text, stray_rows)
        try:
            table = _read_csv(header + text)
        except pl.exceptions.PolarsError:
            try:
                table = _read_csv(header + double_inner_quotes(text))
            except pl.exceptions.PolarsError as e:
                what = f"the {page.layout} page is not valid CSV: {get_first_line_of_message(e)}"
                raise CorruptTraceError(what, path=self.path, hint=_AGAIN) from e
        if NEWLINE.encode() in text:
            table = table.with_columns(pl.all().str.replace_all(NEWLINE, "\n", literal=True))
        return table

    def _move_units_to_pages(self, pages: list[NcuPage], table: pl.DataFrame) -> pl.DataFrame:
        """Store the units of each raw page in the page, and return the table without the rows of units.

        The row of units of a page is the row whose ID is empty.
        """
        of_units = pl.col("0") == ""
        first = table.filter(of_units).unique(_PAGE, keep="first", maintain_order=True)
        units = dict(zip(first[_PAGE], first.drop(_PAGE).iter_rows(), strict=True))
        for number, page in enumerate(pages):
            if page.units is None:
                self.has_unitless_page = self.has_unitless_page or number not in units
                page.units = [u or "" for u in units[number][:-1]] if number in units else [""] * len(page.header)
        return table.filter(~of_units.fill_null(value=False))

    def _select_rows_matching_header(self, page: NcuPage, table: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of a table that have as many cells as its header and an id in the first cell.

        All other rows are counted as invalid, unless they look like output of ncu or the program between the rows.
        """
        width = len(page.header)
        fits = pl.col(str(_find_last_required_column_index(page))).is_not_null() & pl.col(str(width)).is_null()
        identified = (
            pl.col("0").str.contains(r"^\d+$")
            if page.header[0] in _NUMERIC_FIRST_COLUMNS
            else pl.col("0").is_not_null()
        )
        checked = table.select(fits=fits, named=identified.fill_null(value=False))
        valid = checked["fits"] & checked["named"]
        if valid.all():
            return table
        self.invalid_rows += checked.filter(pl.col("fits") != pl.col("named")).height
        return table.filter(valid)

    def _assign_run_numbers(self, pages: list[NcuPage], table: pl.DataFrame) -> pl.Series:
        """Return the run number of each row, and append the columns that identify the launch of each run to ``runs``.

        A run consists of consecutive rows of the same launch. Runs are numbered from 0 across the whole file.
        """
        page = pages[0]
        identity = {IDENTITY[h]: str(i) for i, h in enumerate(page.header) if h in IDENTITY}
        keys = (
            [identity[c] for c in _LAUNCH_COLUMNS if c in identity] if page.is_per_launch else list(identity.values())
        )
        changes = [pl.col(c).ne_missing(pl.col(c).shift(1)) for c in (*keys, _PAGE)]
        first = table.select(pl.any_horizontal(pl.int_range(pl.len()) == 0, *changes)).to_series()
        first_rows = table.filter(first)
        self.runs.append(
            first_rows.select(
                pl.lit("launch" if page.is_per_launch else page.layout).alias("scope"),
                pl.Series("number", [p.number for p in pages], pl.Int32).gather(first_rows[_PAGE]),
                *(
                    (pl.col(identity[c]) if c in identity else pl.lit(None, pl.String)).alias(c)
                    for c in _IDENTITY_COLUMNS
                ),
            )
        )
        run = first.cum_sum().cast(pl.Int64) - 1 + self._run
        self._run += first_rows.height
        return run.alias("run")

    def _add_raw_metrics(self, pages: list[NcuPage], table: pl.DataFrame, run_numbers: pl.Series) -> None:
        """Add the metrics of raw pages, which have one column per metric. Empty cells are skipped."""
        header = pages[0].header
        lead = 1 + max(i for i, h in enumerate(header) if h in IDENTITY)
        names = header[lead:]
        if not names:
            return
        names_and_units = (zip(names, (page.units or [])[lead:], strict=True) for page in pages)
        kinds = np.array(
            [
                [self._register_metric_kind(None, name, unit) for name, unit in page_names]
                for page_names in names_and_units
            ],
            np.int32,
        )
        rows, columns = table.height, len(names)
        order = np.arange(rows * columns).reshape(columns, rows).T.ravel()
        cells = table[:, lead : lead + columns].unpivot()["value"].gather(order)
        long = pl.DataFrame(
            {
                "run": np.repeat(run_numbers.to_numpy(), columns),
                "kind": kinds[table[_PAGE].to_numpy()].ravel(),
                "cell": cells,
            }
        )
        self._add_metric_values(long.filter(pl.col("cell") != ""))

    def _add_listed_metrics(self, page: NcuPage, table: pl.DataFrame, run_numbers: pl.Series) -> None:
        """Add the metrics and rules of a page that has one row per metric."""
        columns = {h: str(i) for i, h in reversed(list(enumerate(page.header)))}

        def column_expr(header: str) -> pl.Expr:
            return pl.col(columns[header]) if header in columns else pl.lit(None, pl.String)

        listed = table.with_columns(
            run_numbers,
            section=column_expr("Section Name"),
            metric=column_expr("Metric Name"),
            unit=column_expr("Metric Unit"),
        )
        cells = {"cell": "Metric Value"} if page.is_per_launch else {"cell": "Average", **_EXTREMES}
        metrics = listed.filter(pl.col("metric") != "").select(
            "run", "section", "metric", "unit", **{name: column_expr(header) for name, header in cells.items()}
        )
        self._add_metric_values(self._replace_with_kind_column(metrics))
        if "Rule Name" in columns:
            rules = listed.with_columns(**{name: column_expr(header) for header, name in _RULE_COLUMNS.items()})
            self.rules.append(rules.filter(pl.col("rule_id") != "").select(RULES.names()))

    def _replace_with_kind_column(self, metrics: pl.DataFrame) -> pl.DataFrame:
        """Replace the columns ``section``, ``metric`` and ``unit`` with ``kind``, the index of the metric kind."""
        on = ["section", "metric", "unit"]
        distinct = metrics.select(on).unique(maintain_order=True)
        kinds = distinct.with_columns(
            kind=pl.Series([self._register_metric_kind(*row) for row in distinct.rows()], dtype=pl.Int32)
        )
        return metrics.join(kinds, on=on, how="left", maintain_order="left", nulls_equal=True).drop(on)

    def _register_metric_kind(self, section: str | None, metric: str, unit: str | None) -> int:
        kind = self.kinds.setdefault((section, metric, unit), len(self.kinds))
        if kind == len(self._exponents):
            self._exponents.append(find_base_unit_and_exponent(unit or "")[1])
        return kind

    def _add_metric_values(self, cells: pl.DataFrame) -> None:
        """Parse the numbers in cells, and append them to ``metrics``."""
        if not cells.height:
            return
        exponents = np.array(self._exponents)[cells["kind"].to_numpy()]
        style = self.determine_number_style(cells["cell"])
        values = cells.select("run", "kind").hstack(parse_numbers(cells["cell"], exponents, style))
        extremes = [
            parse_numbers(cells[c], exponents, style)["value"].alias(c) for c in _EXTREMES if c in cells.columns
        ]
        self.metrics.append(values.with_columns(extremes))


def _find_last_required_column_index(page: NcuPage) -> int:
    """Return the index of the last column that every row of a table must have. Later cells may be missing."""
    needed = {"details": "Metric Value", "raw": page.header[-1]}.get(page.layout, "Average")
    return len(page.header) - 1 - page.header[::-1].index(needed)


def _read_csv(text: bytes) -> pl.DataFrame:
    return pl.read_csv(text, infer_schema=False, truncate_ragged_lines=True)
