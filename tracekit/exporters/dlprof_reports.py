"""Export all DLProf reports to a folder, as CSV in the format of DLProf and as JSON with the same column titles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.exporters.dlprof_db import VERSION_OPTIONS
from tracekit.registry.analyses import REPORT, list_analyses
from tracekit.registry.interface import Exporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.registry.analyses import Value
    from tracekit.registry.interface import Progress, View

SUMMARY = "summary"
_SUMMARY_NAMES = {"dlprof-version": "DLProf Version", "dlprof-build": "DLProf Build"}


def write(view: View, path: Path, progress: Progress, *, options: Mapping[str, Value]) -> None:
    """Write all DLProf reports for a trace to a new folder."""
    path.mkdir()
    values = {name: str(value) for name, value in options.items() if value is not None}
    names = _list_reports()
    for number, name in enumerate(names, 1):
        report = view.report(name)
        stem = path / _choose_file_stem(name)
        with stem.with_suffix(".csv").open("wb") as sink:
            report.csv(sink)
        stem.with_suffix(".json").write_text(report.frame().write_json(), "utf-8", newline="\n")
        if name == SUMMARY and values:
            _set_summary_values(stem, values)
        progress(number, len(names))


def is_own_file(path: Path) -> bool:
    """Return whether this exporter probably wrote a file: the file has the name of a DLProf report."""
    return path.suffix in (".csv", ".json") and path.stem in map(_choose_file_stem, _list_reports())


def _list_reports() -> list[str]:
    return [name for name, report in list_analyses(REPORT).items() if report.origin == "dlprof"]


def _choose_file_stem(report: str) -> str:
    """Return the file name of a report without its suffix."""
    return f"dlprof_{report.replace('-', '_')}"


def _set_summary_values(stem: Path, options: Mapping[str, str]) -> None:
    """Write the values of export options to the existing CSV and JSON files of the summary report.

    Args:
        stem: Path of the two files, without their suffixes.
        options: The values of options, by option name.
    """
    import polars as pl

    values = {_SUMMARY_NAMES[name]: value.replace("\n", " ") for name, value in options.items()}
    csv, json = stem.with_suffix(".csv"), stem.with_suffix(".json")
    lines = csv.read_text("utf-8").split("\n")
    updated_lines = [f"{n},{values[n]}" if (n := line.partition(",")[0]) in values else line for line in lines]
    csv.write_text("\n".join(updated_lines), "utf-8", newline="\n")
    value = pl.col("Name").replace_strict(values, default=pl.col("Value"), return_dtype=pl.String)
    text = pl.read_json(json.read_bytes()).with_columns(Value=value).write_json()
    json.write_text(text, "utf-8", newline="\n")


EXPORTER = Exporter(
    "dlprof-reports",
    "DLProf reports as CSV and JSON in a folder",
    (".dlprof",),
    write=write,
    folder=True,
    options=VERSION_OPTIONS,
    wrote=is_own_file,
)
