"""The reports of DLProf, a folder of them: each as the CSV that DLProf wrote, and as JSON with the same titles."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit.registry import Exporter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tracekit.registry import Progress, View

SUMMARY = "summary"
REPORTS = (SUMMARY, "detailed", "iteration", "kernel", "tensor-core", "op-type", "group-op", "expert-systems")
OPTIONS = {"dlprof-version": "version of DLProf to name, v1.8.0", "dlprof-build": "build of DLProf to name"}
_LINES = {"dlprof-version": "DLProf Version", "dlprof-build": "DLProf Build"}


def write(view: View, path: Path, progress: Progress, *, options: Mapping[str, str] | None = None) -> None:
    """Write the folder."""
    path.mkdir()
    for done, name in enumerate(REPORTS, 1):
        report = view.report(name)
        stem = path / _stem(name)
        with stem.with_suffix(".csv").open("wb") as sink:
            report.csv(sink)
        stem.with_suffix(".json").write_text(report.frame().write_json(), "utf-8")
        if name == SUMMARY and options:
            _name(stem, options)
        progress(done, len(REPORTS))


def wrote(path: Path) -> bool:
    """Return whether a file is named as one of these reports."""
    return path.suffix in (".csv", ".json") and path.stem in map(_stem, REPORTS)


def _stem(report: str) -> str:
    return f"dlprof_{report.replace('-', '_')}"


def _name(stem: Path, options: Mapping[str, str]) -> None:
    """Put options in their places in the summary."""
    import polars as pl

    told = {_LINES[name]: value.replace("\n", " ") for name, value in options.items()}
    csv, json = stem.with_suffix(".csv"), stem.with_suffix(".json")
    lines = csv.read_text("utf-8").split("\n")
    told_lines = [f"{n},{told[n]}" if (n := line.partition(",")[0]) in told else line for line in lines]
    csv.write_text("\n".join(told_lines), "utf-8")
    value = pl.col("Name").replace_strict(told, default=pl.col("Value"), return_dtype=pl.String)
    json.write_text(pl.read_json(json.read_bytes()).with_columns(Value=value).write_json(), "utf-8")


def _exporter(options: Mapping[str, str]) -> Exporter:
    return Exporter(
        "dlprof-reports",
        "Reports of DLProf, CSV and JSON, in a folder",
        (".dlprof",),
        write=functools.partial(write, options=options),
        folder=True,
        options=OPTIONS,
        configure=_exporter,
        wrote=wrote,
    )


EXPORTER = _exporter({})
