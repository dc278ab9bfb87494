"""A CSV of Nsight Compute as declared tables. It is read at once: all tables come from the same rows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit import schemas
from tracekit.errors import CorruptTraceError, MissingTableError, TracekitError, UnsupportedVersionError, warn
from tracekit.readers.ncu import devices, nvtx
from tracekit.readers.ncu.devices import PREFIX
from tracekit.readers.ncu.labels import DURATION, metric_of, section_id, section_name
from tracekit.readers.ncu.units import printed
from tracekit.readers.ncu_csv import frame, launches
from tracekit.readers.ncu_csv.numbers import ENGLISH, parse
from tracekit.readers.ncu_csv.rows import METRICS, RULES, Rows
from tracekit.readers.ncu_csv.session import Session

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from tracekit.registry import Source

TOOL = "NVIDIA Nsight Compute"
_LONGEST_NS = 1 << 62
_ABOUT = {
    "device_id": pl.Int32,
    "process_id": pl.Int32,
    "compute_major": pl.Int32,
    "compute_minor": pl.Int32,
    "process_name": pl.String,
}
_PROCESSES = {"process_id": pl.Int64, "name": pl.String}
_AS_CSV = "print it with ncu --import REPORT --page raw --csv --print-units base"


def read(source: Source) -> dict[str, pa.Table]:
    """Read a file: its tables by name.

    Raises:
        MissingTableError: It holds no table: nothing was profiled, or ncu or the program failed.
        UnsupportedVersionError: It holds a page that is not read.
        CorruptTraceError: No row fits its header.
    """
    rows, session, remarks = Rows(source.path), Session(), frame.Remarks()
    pages: dict[str, None] = {}
    for page, text in frame.tables(source.path, remarks):
        pages[page.dialect] = None
        if page.dialect == "session":
            session.add(page, text)
        elif page.dialect != "source" and text:
            rows.add(page, text)
    if not rows.runs and "session" not in pages:
        raise refusal(source.path, pages, rows, remarks)
    _warn(source.path, pages, rows, remarks)
    return Tables(rows, session, [p for p in pages if p != "source"]).made()


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


class Tables:
    """The tables of a file that has been read."""

    def __init__(self, rows: Rows, session: Session, pages: list[str]) -> None:
        self._rows = rows
        self._session = session
        self._pages = pages
        self._style = rows.known_style or ENGLISH
        self._kinds = [kind(*printed_as) for printed_as in rows.kinds]

    def made(self) -> dict[str, pa.Table]:
        """Make them all."""
        if not self._rows.runs:
            return self._about(pl.DataFrame(schema=_ABOUT), {})
        found, of_run = launches.numbered(pl.concat(self._rows.runs))
        metrics = self._metrics(of_run)
        ranges = launches.ranges(found)
        typed = self._launches(found, ranges, metrics)
        about = typed.select("device_id", "process_id", "compute_major", "compute_minor").with_columns(
            found["process_name"]
        )
        return {
            "ncu_launches": filled("ncu_launches", typed),
            "ncu_nvtx_ranges": filled("ncu_nvtx_ranges", ranges),
            "ncu_metrics": self._metric_table(metrics),
            "ncu_rules": filled("ncu_rules", self._rules(of_run)),
            **self._about(about, self._attributes(typed, metrics)),
        }

    def _metrics(self, of_run: pl.Series) -> pl.DataFrame:
        """The values, with the launch in place of the run."""
        metrics = pl.concat(self._rows.metrics or [pl.DataFrame(schema=METRICS)])
        return metrics.with_columns(of_run.gather(metrics["run"]).alias("launch_id")).drop("run")

    def _of(self, names: set[str | None]) -> list[int]:
        """Numbers of the kinds of some metrics."""
        return [n for n, made in enumerate(self._kinds) if made.metric in names]

    def _launches(self, found: pl.DataFrame, ranges: pl.DataFrame, metrics: pl.DataFrame) -> pl.DataFrame:
        """Columns of ``ncu_launches``; of several durations printed the most precise one."""
        duration = (
            metrics.filter(pl.col("kind").is_in(self._of({DURATION})) & pl.col("value").is_between(0, _LONGEST_NS))
            .sort("resolution", nulls_last=True, maintain_order=True)
            .group_by("launch_id")
            .agg(duration_ns=pl.col("value").first().round().cast(pl.Int64))
        )
        return (
            launches.typed(found, self._style)
            .join(duration, "launch_id", how="left", maintain_order="left")
            .join(nvtx.paths(ranges), "launch_id", how="left", maintain_order="left")
            .with_columns(
                launches.without_range(pl.col("name"), pl.col("range_name")).alias("name"),
                pl.col("range_depth").fill_null(0),
            )
        )

    def _metric_table(self, metrics: pl.DataFrame) -> pa.Table:
        """The table ``ncu_metrics``; the names come from the kinds and are never text a row."""
        kinds = metrics["kind"].to_numpy()
        names = {c: dictionary([getattr(k, c) for k in self._kinds], kinds) for c in Kind._fields}
        values = metrics.drop("kind").to_arrow()
        return pa.table({**{c: values[c] for c in values.column_names}, **names})

    def _rules(self, of_run: pl.Series) -> pl.DataFrame:
        """The table ``ncu_rules``."""
        rules = pl.concat(self._rows.rules or [pl.DataFrame(schema=RULES)])
        speedup = parse(rules["speedup_percent"].fill_null(""), np.zeros(rules.height, np.int64), self._style)["value"]
        sections = {s: section_name(s) for s in rules["section"].unique()}
        return rules.select(
            pl.int_range(1, pl.len() + 1, dtype=pl.Int64).alias("message_id"),
            of_run.gather(rules["run"]).alias("launch_id"),
            pl.col("section").replace_strict(sections, return_dtype=pl.String),
            pl.col("section").alias("section_id"),
            "rule",
            pl.col("type").replace("", None),
            "message",
            pl.col("speedup_type").replace("", None),
            speedup.alias("speedup_percent"),
        )

    def _attributes(self, typed: pl.DataFrame, metrics: pl.DataFrame) -> dict[int, dict[str, float | str | None]]:
        """Attributes of each device, as its first launch has them."""
        names = {
            n: k.metric.removeprefix(PREFIX) for n, k in enumerate(self._kinds) if (k.metric or "").startswith(PREFIX)
        }
        first = typed.filter(pl.col("device_id").is_not_null()).unique("device_id", keep="first")
        rows = metrics.filter(pl.col("kind").is_in(list(names))).join(first, "launch_id", maintain_order="left")
        found: dict[int, dict[str, float | str | None]] = {}
        for device, number, value, text in rows.select("device_id", "kind", "value", "text").iter_rows():
            found.setdefault(device, {})[names[number]] = text if value is None else value
        return found

    def _about(self, about: pl.DataFrame, attributes: dict[int, dict[str, float | str | None]]) -> dict[str, pa.Table]:
        """The tables about the capture and its machine."""
        facts = {"tool": TOOL, **self._session.facts, "pages": ", ".join(self._pages)}
        known = [(name, value) for name, value in facts.items() if value is not None]
        names = about.select("process_id", "process_name").drop_nulls("process_id").unique("process_id", keep="first")
        processes = {p: basename(path) for p, path in self._session.processes.items()} | dict(names.rows())
        return {
            "capture_info": filled("capture_info", pl.DataFrame(known, ["name", "value"], orient="row")),
            "devices": filled("devices", self._devices(about, attributes)),
            "processes": filled("processes", pl.DataFrame(sorted(processes.items()), _PROCESSES, orient="row")),
        }

    def _devices(self, about: pl.DataFrame, attributes: dict[int, dict[str, float | str | None]]) -> pl.DataFrame:
        """What launches, their attributes and the session page tell of the devices."""
        own = about.drop_nulls("device_id").unique("device_id", keep="first", maintain_order=True)
        gpus = {row.pop("device_id"): row for row in own.drop("process_id", "process_name").rows(named=True)}
        for known in (attributes, self._session.devices):
            for device, of_device in known.items():
                some = {name: value for name, value in devices.columns(of_device).items() if value is not None}
                gpus[device] = gpus.get(device, {}) | some
        rows = [{"device_id": device, **gpus[device]} for device in sorted(gpus)]
        return pl.DataFrame(rows, schemas.polars_schema(schemas.table("devices")))


class Kind(NamedTuple):
    """What is printed of a metric beside its value, and what it means."""

    metric: str | None
    label: str | None
    section: str | None
    section_id: str | None
    unit: str | None
    printed_unit: str | None


def kind(section: str | None, name: str, unit: str | None) -> Kind:
    """Understand what is printed beside a value."""
    metric, label = metric_of(section or None, name)
    return Kind(metric, label, section or None, section_id(section), printed(unit or "")[0], unit or None)


def dictionary(values: list[str | None], codes: np.ndarray) -> pa.DictionaryArray:
    """Take values by number: n numbers in, n texts out as a dictionary."""
    unique = {v: i for i, v in enumerate(dict.fromkeys(v for v in values if v is not None))}
    numbers = np.array([-1 if v is None else unique[v] for v in values], np.int32)[codes]
    return pa.DictionaryArray.from_arrays(pa.array(numbers, mask=numbers < 0), pa.array(unique, pa.string()))


def basename(path: str) -> str:
    """Return the last part of a path of any system."""
    return re.split(r"[/\\]", path)[-1]


def filled(name: str, rows: pl.DataFrame) -> pa.Table:
    """Give rows the columns of a table that they lack, without values."""
    declared = schemas.polars_schema(schemas.table(name))
    return rows.with_columns(pl.lit(None, t).alias(c) for c, t in declared.items() if c not in rows.columns).to_arrow()
