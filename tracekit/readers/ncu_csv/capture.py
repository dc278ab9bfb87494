"""A CSV of Nsight Compute as declared tables. It is read at once: all tables come from the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from tracekit import schemas
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError, UnsupportedVersionError, warn
from tracekit.forks import check_polars
from tracekit.readers.ncu import nvtx
from tracekit.readers.ncu.labels import DURATION, section_name
from tracekit.readers.ncu_csv import about, frame, launches
from tracekit.readers.ncu_csv.metrics import Metrics
from tracekit.readers.ncu_csv.numbers import ENGLISH, parse
from tracekit.readers.ncu_csv.rows import RULES, Rows
from tracekit.readers.ncu_csv.session import Session

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pyarrow as pa

    from tracekit.readers.ncu_csv.numbers import Style
    from tracekit.registry import Source

_LONGEST_NS = 1 << 62
_AS_CSV = "print it with ncu --import REPORT --page raw --csv --print-units base"


def read(source: Source) -> dict[str, pa.Table]:
    """Read a file: its tables by name.

    Raises:
        MissingTableError: It holds no table: nothing was profiled, or ncu or the program failed.
        UnsupportedVersionError: It holds a page that is not read.
        CorruptTraceError: No row fits its header.
    """
    check_polars()
    rows, session, remarks = Rows(source.path), Session(), frame.Remarks()
    pages: dict[str, None] = {}
    for page, text in frame.tables(source.path, remarks):
        pages[page.dialect] = None
        if page.dialect == "session":
            session.add(page, text)
        elif page.dialect != "source" and text:
            rows.add(page, text)
    rows.finish()
    if not rows.runs and "session" not in pages:
        raise refusal(source.path, pages, rows, remarks)
    _warn(source.path, pages, rows, remarks)
    pages.pop("source", None)
    return made(rows, session, pages)


def refusal(path: Path, pages: Collection[str], rows: Rows, remarks: frame.Remarks) -> TracekitError:
    """Say why a file has no rows that are read."""
    if unfit := rows.damaged + remarks.cut:
        what = f"none of {unfit} rows fits its header"
        return CorruptTraceError(what, path=path, table="ncu_launches", hint="print it again with ncu")
    if "source" in pages:
        return UnsupportedVersionError("is a source page of ncu, which is not read", path=path, hint=_AS_CSV)
    if remarks.prose and not pages:
        return UnsupportedVersionError("is a page of ncu printed for people, not CSV", path=path, hint=_AS_CSV)
    what, hint = _reason(remarks, "a header, but no row" if pages else "no table")
    return MissingTableError(f"ncu {what}", path=path, hint=hint)


def _reason(remarks: frame.Remarks, instead: str) -> tuple[str, str]:
    """Tell from the remarks of ncu why it printed no rows, and what to do."""
    lines = remarks.lines
    if lines[frame.PERMISSION]:
        guide = "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        return "may not read performance counters", f"let this user read them: {guide}"
    if lines[frame.EXIT]:
        return "profiled nothing: the program failed", "run the program without ncu first"
    if lines[frame.NOTHING]:
        return "profiled no kernel", "check its filters: --kernel-name, --launch-skip, --nvtx-include"
    said = f"{sum(lines[k] for k in frame.KINDS)} remarks ({lines['ERROR']} errors)"
    return f"printed {said} and {instead}", "let ncu run to its end, with --csv"


def _warn(path: Path, pages: Collection[str], rows: Rows, remarks: frame.Remarks) -> None:
    if dropped := rows.damaged + remarks.cut:
        warn(f"{dropped} rows do not fit their header: left out", path=path)
    if rows.unitless:
        warn("a raw page has no row of units: its values are taken as they are printed", path=path)
    if "source" in pages:
        warn("a source page is not read", path=path)


def made(rows: Rows, session: Session, pages: Collection[str]) -> dict[str, pa.Table]:
    """Make the tables of what was read."""
    tables: dict[str, pl.DataFrame] = {"capture_info": about.capture_info(session, pages)}
    machine = pl.DataFrame(schema=about.LAUNCHES)
    metrics = None
    if rows.runs:
        found, of_run = launches.numbered(pl.concat(rows.runs))
        metrics = Metrics(rows, of_run)
        style = rows.known_style or ENGLISH
        ranges = launches.ranges(found)
        typed = launches.typed(found, style).join(_durations(metrics), "launch_id", how="left", maintain_order="left")
        tables["ncu_launches"] = _within_ranges(typed, ranges)
        tables["ncu_nvtx_ranges"] = ranges
        tables["ncu_rules"] = _rules(pl.concat(rows.rules or [pl.DataFrame(schema=RULES)]), of_run, style)
        machine = typed.with_columns(found["process_name"]).select(list(about.LAUNCHES))
    tables["devices"] = about.devices(session, machine, metrics)
    tables["processes"] = about.processes(session, machine)
    whole = {name: _filled(name, table) for name, table in tables.items()}
    return whole if metrics is None else {**whole, "ncu_metrics": metrics.table()}


def _durations(metrics: Metrics) -> pl.DataFrame:
    """How long each launch took; of several values printed the most precise one."""
    known = metrics.some(lambda name: name == DURATION).filter(pl.col("value").is_between(0, _LONGEST_NS))
    best = known.sort("resolution", nulls_last=True, maintain_order=True).group_by("launch_id")
    return best.agg(duration_ns=pl.col("value").first().round().cast(pl.Int64))


def _within_ranges(typed: pl.DataFrame, ranges: pl.DataFrame) -> pl.DataFrame:
    """Give launches the names of the ranges that they were launched in: n rows in, n rows out."""
    return typed.join(nvtx.paths(ranges), "launch_id", how="left", maintain_order="left").with_columns(
        launches.without_range(pl.col("name"), pl.col("range_name")).alias("name"),
        pl.col("range_depth").fill_null(0),
    )


def _rules(rules: pl.DataFrame, of_run: pl.Series, style: Style) -> pl.DataFrame:
    """The messages of rules."""
    speedup = parse(rules["speedup_percent"].fill_null(""), np.zeros(rules.height, np.int64), style)["value"]
    sections = {s: section_name(s) for s in rules["section"].unique()}
    return rules.select(
        pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias("message_id"),
        of_run.gather(rules["run"]).alias("launch_id"),
        pl.col("section").replace_strict(sections, return_dtype=pl.String),
        pl.col("section").alias("section_id"),
        "rule_id",
        pl.col("type").replace("", None),
        "message",
        pl.col("speedup_type").replace("", None),
        speedup.alias("speedup_percent"),
    )


def _filled(name: str, rows: pl.DataFrame) -> pa.Table:
    """Give rows the columns of a table that they lack, without values."""
    declared = schemas.polars_schema(schemas.table(name))
    return rows.with_columns(pl.lit(None, t).alias(c) for c, t in declared.items() if c not in rows.columns).to_arrow()
