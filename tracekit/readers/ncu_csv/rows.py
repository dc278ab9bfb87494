"""Rows of the tables as columns of text, and as launches, metrics and rules with numbers.

Rows of one launch follow one another. Such a run is told by a change of the columns that name the launch; runs become
launches when the whole file is read, because another page of the same report may print the same launches again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.errors import CorruptTraceError, first_line
from tracekit.readers.ncu.units import printed
from tracekit.readers.ncu_csv.frame import NEWLINE, lines_of, requoted, strays
from tracekit.readers.ncu_csv.numbers import ENGLISH, parse, style_of

if TYPE_CHECKING:
    from pathlib import Path

    from tracekit.readers.ncu_csv.frame import Page
    from tracekit.readers.ncu_csv.numbers import Style

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
"""Columns that tell what a row is about."""

_LAUNCH = ("source_id", "process_id")
_RULE = {
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
RULES = pl.Schema({"run": pl.Int64, "section": pl.String, **dict.fromkeys(_RULE.values(), pl.String)})
_COLUMNS = tuple(dict.fromkeys(IDENTITY.values()))
FIRST_CELLS = 1 << 16
"""How numbers are printed is told from so many cells, if they tell."""
BATCH_BYTES = 1 << 22
"""Rows of consecutive tables with the same columns are read together, so many bytes at a time."""
FREE_BATCHES, BYTES_PER_BATCH = 500, 1 << 12
"""A file may have so many batches, and one more for so many bytes of rows: each costs milliseconds."""
FREE_CELLS, CELLS_PER_BYTE = 1 << 16, 2
"""A batch may have so many cells, and so many more for each of its bytes."""
_AGAIN = "print it again with ncu"
_PAGE = "page"
_NUMBERED = ("ID", "Process ID")
_FIRST_NUMBER = re.compile(rb'^"?\d+"?(?:,|$)', re.MULTILINE)


@dataclass(slots=True)
class Rows:
    """All rows of a file, with the launches they belong to as numbers of runs and their metrics as numbers of kinds.

    Attributes:
        path: The file.
        runs: What each run of rows is about, a frame a piece.
        metrics: Values, a frame a piece: run, kind, value, text, resolution, instances; of a summary also its extremes.
        rules: Messages of rules, a frame a piece.
        kinds: Number of each section, printed name and printed unit.
        damaged: Rows that do not fit their header.
        unitless: Whether a raw page had no row of units.
    """

    path: Path
    runs: list[pl.DataFrame] = field(default_factory=list)
    metrics: list[pl.DataFrame] = field(default_factory=list)
    rules: list[pl.DataFrame] = field(default_factory=list)
    kinds: dict[tuple[str | None, str, str | None], int] = field(default_factory=dict)
    damaged: int = 0
    unitless: bool = False
    _run: int = 0
    known_style: Style | None = None
    _powers: list[int] = field(default_factory=list)
    _pages: list[Page] = field(default_factory=list)
    _texts: list[bytes] = field(default_factory=list)
    _waiting: int = 0
    _batches: int = 0
    _bytes: int = 0

    def add(self, page: Page, text: bytes) -> None:
        """Take some rows of a table; they are read when there are many, or those of a table with other columns come.

        Raises:
            CorruptTraceError: Columns change too often, or rows have far fewer cells than their header.
        """
        if self._pages and (page.dialect, page.header) != (self._pages[0].dialect, self._pages[0].header):
            self.finish()
        self._pages.append(page)
        self._texts.append(text)
        self._waiting += len(text)
        if self._waiting >= BATCH_BYTES:
            self.finish()

    def finish(self) -> None:
        """Read the rows that were taken and not read yet.

        Raises:
            CorruptTraceError: Columns change too often, or rows have far fewer cells than their header.
        """
        pages, texts = self._pages, [self._long_enough(p, t) for p, t in zip(self._pages, self._texts, strict=True)]
        self._pages, self._texts, self._waiting = [], [], 0
        if not any(texts):
            return
        table = self._table(pages[0], b"".join(texts))
        lines = [text.count(b"\n") for text in texts] if len(texts) > 1 else [table.height]
        if sum(lines) == table.height:
            self._read(pages, table, lines)
            return
        for page, text in zip(pages, texts, strict=True):
            alone = self._table(page, text)
            self._read([page], alone, [alone.height])

    def _long_enough(self, page: Page, text: bytes) -> bytes:
        """Leave out the rows that have too few cells to fit, if they are many; count those that are no print.

        A row without cells would take as much memory as one with all of them.

        Raises:
            CorruptTraceError: What is left has far fewer cells than its header.
        """
        most = FREE_CELLS + CELLS_PER_BYTE * len(text)
        width = len(page.header) + 1
        if text.count(b"\n") * width <= most:
            return text
        data, starts = lines_of(text)
        enough = np.add.reduceat((data == ord(",")).view(np.uint8), starts, dtype=np.int32) >= _last(page)
        if np.count_nonzero(enough) * width > most:
            what = f"{page.dialect} page: a header of {len(page.header)} columns, and rows with far fewer"
            raise CorruptTraceError(what, path=self.path, hint=_AGAIN)
        ends = np.append(starts[1:], len(text))
        edges = np.flatnonzero(np.diff(enough, prepend=~enough[0])).tolist()
        runs = [text[starts[a] : ends[b - 1]] for a, b in zip(edges, [*edges[1:], len(starts)], strict=True)]
        kept, dropped = runs[not enough[0] :: 2], runs[bool(enough[0]) :: 2]
        numbered = page.header[0] in _NUMBERED
        self.damaged += sum(
            sum(1 for _ in _FIRST_NUMBER.finditer(run)) if numbered else run.count(b"\n") for run in dropped
        )
        return b"".join(kept)

    def _read(self, pages: list[Page], table: pl.DataFrame, lines: list[int]) -> None:
        """Read the rows of tables with the same columns, so many of each of them."""
        table = table.with_columns(pl.Series(_PAGE, np.repeat(np.arange(len(pages), dtype=np.int32), lines)))
        if pages[0].dialect == "raw":
            table = self._units(pages, table)
        table = self._fitting(pages[0], table)
        if not table.height:
            return
        run = self._runs(pages, table)
        if pages[0].dialect == "raw":
            self._wide(pages, table, run)
        else:
            self._long(pages[0], table, run)

    def style(self, cells: pl.Series) -> Style:
        """Return how numbers are printed: as the first that tell."""
        self.known_style = self.known_style or style_of(cells.head(FIRST_CELLS)) or style_of(cells)
        return self.known_style or ENGLISH

    def _table(self, page: Page, text: bytes) -> pl.DataFrame:
        """Read rows as text: a column a cell, and one for a cell too many."""
        self._batches += 1
        self._bytes += len(text)
        if self._batches > FREE_BATCHES + self._bytes // BYTES_PER_BATCH:
            what = f"its columns change too often: {self._batches} times in {self._bytes} bytes of rows"
            raise CorruptTraceError(what, path=self.path, hint=_AGAIN)
        header = ",".join(map(str, range(len(page.header) + 1))).encode() + b"\n"
        if torn := strays(text):
            text = requoted(text, torn)
        try:
            table = _parsed(header + text)
        except pl.exceptions.PolarsError:
            try:
                table = _parsed(header + requoted(text))
            except pl.exceptions.PolarsError as e:
                raise CorruptTraceError(f"{page.dialect} page: {first_line(e)}", path=self.path, hint=_AGAIN) from e
        if NEWLINE.encode() in text:
            table = table.with_columns(pl.all().str.replace_all(NEWLINE, "\n", literal=True))
        return table

    def _units(self, pages: list[Page], table: pl.DataFrame) -> pl.DataFrame:
        """Take the row of units out of each raw page; it has no ID."""
        of_units = pl.col("0") == ""
        first = table.filter(of_units).unique(_PAGE, keep="first", maintain_order=True)
        units = dict(zip(first[_PAGE], first.drop(_PAGE).iter_rows(), strict=True))
        for number, page in enumerate(pages):
            if page.units is None:
                self.unitless = self.unitless or number not in units
                page.units = [u or "" for u in units[number][:-1]] if number in units else [""] * len(page.header)
        return table.filter(~of_units.fill_null(value=False))

    def _fitting(self, page: Page, table: pl.DataFrame) -> pl.DataFrame:
        """Keep the rows that fit the header; count the others, if they do not look like a program's print."""
        width = len(page.header)
        fits = pl.col(str(_last(page))).is_not_null() & pl.col(str(width)).is_null()
        named = pl.col("0").str.contains(r"^\d+$") if page.header[0] in _NUMBERED else pl.col("0").is_not_null()
        checked = table.select(fits=fits, named=named.fill_null(value=False))
        whole = checked["fits"] & checked["named"]
        if whole.all():
            return table
        self.damaged += checked.filter(pl.col("fits") != pl.col("named")).height
        return table.filter(whole)

    def _runs(self, pages: list[Page], table: pl.DataFrame) -> pl.Series:
        """Number the runs of rows about one launch, and keep what each is about."""
        page = pages[0]
        about = {IDENTITY[h]: str(i) for i, h in enumerate(page.header) if h in IDENTITY}
        keys = [about[c] for c in _LAUNCH if c in about] if page.launches else list(about.values())
        changes = [pl.col(c).ne_missing(pl.col(c).shift(1)) for c in (*keys, _PAGE)]
        first = table.select(pl.any_horizontal(pl.int_range(pl.len()) == 0, *changes)).to_series()
        found = table.filter(first)
        self.runs.append(
            found.select(
                pl.lit("launch" if page.launches else page.dialect).alias("scope"),
                pl.Series("number", [p.number for p in pages], pl.Int32).gather(found[_PAGE]),
                *((pl.col(about[c]) if c in about else pl.lit(None, pl.String)).alias(c) for c in _COLUMNS),
            )
        )
        run = first.cum_sum().cast(pl.Int64) - 1 + self._run
        self._run += found.height
        return run.alias("run")

    def _wide(self, pages: list[Page], table: pl.DataFrame, run: pl.Series) -> None:
        """Take the metrics of raw pages: a column each, empty where a launch has none."""
        header = pages[0].header
        lead = 1 + max(i for i, h in enumerate(header) if h in IDENTITY)
        names = header[lead:]
        if not names:
            return
        beside = (zip(names, (page.units or [])[lead:], strict=True) for page in pages)
        kinds = np.array([[self._kind(None, name, unit) for name, unit in each] for each in beside], np.int32)
        rows, columns = table.height, len(names)
        order = np.arange(rows * columns).reshape(columns, rows).T.ravel()
        cells = table[:, lead : lead + columns].unpivot()["value"].gather(order)
        long = pl.DataFrame(
            {"run": np.repeat(run.to_numpy(), columns), "kind": kinds[table[_PAGE].to_numpy()].ravel(), "cell": cells}
        )
        self._values(long.filter(pl.col("cell") != ""))

    def _long(self, page: Page, table: pl.DataFrame, run: pl.Series) -> None:
        """Take the metrics and rules of a page with a row each."""
        at = {h: str(i) for i, h in reversed(list(enumerate(page.header)))}

        def column(header: str) -> pl.Expr:
            return pl.col(at[header]) if header in at else pl.lit(None, pl.String)

        about = table.with_columns(
            run, section=column("Section Name"), metric=column("Metric Name"), unit=column("Metric Unit")
        )
        cells = {"cell": "Metric Value"} if page.launches else {"cell": "Average", **_EXTREMES}
        metrics = about.filter(pl.col("metric") != "").select(
            "run", "section", "metric", "unit", **{name: column(header) for name, header in cells.items()}
        )
        self._values(self._with_kinds(metrics))
        if "Rule Name" in at:
            rules = about.with_columns(**{name: column(header) for header, name in _RULE.items()})
            self.rules.append(rules.filter(pl.col("rule_id") != "").select(RULES.names()))

    def _with_kinds(self, metrics: pl.DataFrame) -> pl.DataFrame:
        """Replace section, name and unit by their number."""
        on = ["section", "metric", "unit"]
        found = metrics.select(on).unique(maintain_order=True)
        kinds = found.with_columns(kind=pl.Series([self._kind(*row) for row in found.rows()], dtype=pl.Int32))
        return metrics.join(kinds, on=on, how="left", maintain_order="left", nulls_equal=True).drop(on)

    def _kind(self, section: str | None, metric: str, unit: str | None) -> int:
        kind = self.kinds.setdefault((section, metric, unit), len(self.kinds))
        if kind == len(self._powers):
            self._powers.append(printed(unit or "")[1])
        return kind

    def _values(self, long: pl.DataFrame) -> None:
        """Read the numbers of some cells."""
        if not long.height:
            return
        powers = np.array(self._powers)[long["kind"].to_numpy()]
        style = self.style(long["cell"])
        made = long.select("run", "kind").hstack(parse(long["cell"], powers, style))
        extremes = [parse(long[c], powers, style)["value"].alias(c) for c in _EXTREMES if c in long.columns]
        self.metrics.append(made.with_columns(extremes))


def _last(page: Page) -> int:
    """Return the place of the last cell that a row must have."""
    needed = {"details": "Metric Value", "raw": page.header[-1]}.get(page.dialect, "Average")
    return len(page.header) - 1 - page.header[::-1].index(needed)


def _parsed(text: bytes) -> pl.DataFrame:
    return pl.read_csv(text, infer_schema=False, truncate_ragged_lines=True)
