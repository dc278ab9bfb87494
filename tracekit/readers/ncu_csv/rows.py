"""Rows of the tables as columns of text, and as launches, metrics and rules with numbers.

Rows of one launch follow one another. Such a run is told by a change of the columns that name the launch; runs become
launches when the whole file is read, because another page of the same report may print the same launches again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit.errors import CorruptTraceError, first_line
from tracekit.readers.ncu.units import printed
from tracekit.readers.ncu_csv.frame import NEWLINE, requoted, strays
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

    def add(self, page: Page, text: bytes) -> None:
        """Take some rows of a table."""
        table = self._table(page, text)
        if page.dialect == "raw":
            table = self._units(page, table)
        table = self._fitting(page, table)
        if not table.height:
            return
        run = self._runs(page, table)
        if page.dialect == "raw":
            self._wide(page, table, run)
        else:
            self._long(page, table, run)

    def style(self, cells: pl.Series) -> Style:
        """Return how numbers are printed: as the first that tell."""
        self.known_style = self.known_style or style_of(cells.head(FIRST_CELLS)) or style_of(cells)
        return self.known_style or ENGLISH

    def _table(self, page: Page, text: bytes) -> pl.DataFrame:
        """Read rows as text: a column a cell, and one for a cell too many."""
        header = ",".join(map(str, range(len(page.header) + 1))).encode() + b"\n"
        if torn := strays(text):
            text = requoted(text, torn)
        try:
            table = _parsed(header + text)
        except pl.exceptions.PolarsError:
            try:
                table = _parsed(header + requoted(text))
            except pl.exceptions.PolarsError as e:
                hint = "print it again with ncu"
                raise CorruptTraceError(f"{page.dialect} page: {first_line(e)}", path=self.path, hint=hint) from e
        if NEWLINE.encode() in text:
            table = table.with_columns(pl.all().str.replace_all(NEWLINE, "\n", literal=True))
        return table

    def _units(self, page: Page, table: pl.DataFrame) -> pl.DataFrame:
        """Take the row of units out of a raw page; it has no ID."""
        of_units = pl.col("0") == ""
        if page.units is None:
            found = table.filter(of_units).head(1)
            self.unitless = self.unitless or not found.height
            page.units = [u or "" for u in found.row(0)[:-1]] if found.height else [""] * len(page.header)
        return table.filter(~of_units.fill_null(value=False))

    def _fitting(self, page: Page, table: pl.DataFrame) -> pl.DataFrame:
        """Keep the rows that fit the header; count the others, if they do not look like a program's print."""
        width = len(page.header)
        needed = {"details": "Metric Value", "raw": page.header[-1]}.get(page.dialect, "Average")
        last = width - 1 - page.header[::-1].index(needed)
        fits = pl.col(str(last)).is_not_null() & pl.col(str(width)).is_null()
        numbered = page.header[0] in ("ID", "Process ID")
        named = pl.col("0").str.contains(r"^\d+$") if numbered else pl.col("0").is_not_null()
        checked = table.select(fits=fits, named=named.fill_null(value=False))
        whole = checked["fits"] & checked["named"]
        if whole.all():
            return table
        self.damaged += checked.filter(pl.col("fits") != pl.col("named")).height
        return table.filter(whole)

    def _runs(self, page: Page, table: pl.DataFrame) -> pl.Series:
        """Number the runs of rows about one launch, and keep what each is about."""
        about = {IDENTITY[h]: str(i) for i, h in enumerate(page.header) if h in IDENTITY}
        keys = [about[c] for c in _LAUNCH if c in about] if page.launches else list(about.values())
        changes = [pl.col(c).ne_missing(pl.col(c).shift(1)) for c in keys]
        first = table.select(pl.any_horizontal(pl.int_range(pl.len()) == 0, *changes)).to_series()
        found = table.filter(first)
        self.runs.append(
            found.select(
                pl.lit("launch" if page.launches else page.dialect).alias("scope"),
                pl.lit(page.number, pl.Int32).alias("number"),
                *((pl.col(about[c]) if c in about else pl.lit(None, pl.String)).alias(c) for c in _COLUMNS),
            )
        )
        run = first.cum_sum().cast(pl.Int64) - 1 + self._run
        self._run += found.height
        return run.alias("run")

    def _wide(self, page: Page, table: pl.DataFrame, run: pl.Series) -> None:
        """Take the metrics of a raw page: a column each, empty where a launch has none."""
        lead = 1 + max(i for i, h in enumerate(page.header) if h in IDENTITY)
        units = page.units or []
        names = list(zip(page.header[lead:], units[lead:], strict=True))
        if not names:
            return
        kinds = np.array([self._kind(None, name, unit) for name, unit in names], np.int32)
        rows, columns = table.height, len(names)
        order = np.arange(rows * columns).reshape(columns, rows).T.ravel()
        cells = table[:, lead : lead + columns].unpivot()["value"].gather(order)
        long = pl.DataFrame({"run": np.repeat(run.to_numpy(), columns), "kind": np.tile(kinds, rows), "cell": cells})
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


def _parsed(text: bytes) -> pl.DataFrame:
    return pl.read_csv(text, infer_schema=False, truncate_ragged_lines=True)
