"""What is known of reports by build: each is compared, value by value, with the export that nsys made of it.

``python docs/support_matrix.py`` writes ``nsys-rep-support.json`` and ``tested-versions.json`` in ``docs/formats``
anew. It needs the public captures beside the checkout. Of these nothing but counts by build and version gets into the
files.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import tracekit as tk
from tracekit import schemas
from tracekit.errors import TracekitError, TracekitWarning
from tracekit.readers.nsys.mapping import SOURCES
from tracekit.readers.nsys_sqlite.capture import ExportCapture
from tracekit.registry.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
CORPUS = ROOT.parent / "shared" / "corpus" / "nsys_pairs"
DATA = ROOT / "docs" / "formats" / "nsys-rep-support.json"
PUBLIC = ROOT.parent / "shared" / "corpus"
VERSIONS = ROOT / "docs" / "formats" / "tested-versions.json"
NO_CAPTURES = ("golden", "programs", "stats", "recipes", "analyze")
"""Folders of ``fixtures`` without captures."""
PROFILERS = {
    "dlprof-db": "DLProf",
    "graphdef": "TensorFlow",
    "tfevents": "TensorBoard writers",
    **dict.fromkeys(
        ("nsys-rep", "nsys-sqlite", "nsys-parquetdir", "nsys-arrowdir", "nsys-jsonlines"), "Nsight Systems"
    ),
    **dict.fromkeys(("ncu-rep", "ncu-csv"), "Nsight Compute"),
    **dict.fromkeys(("nvprof", "nvprof-csv"), "nvprof"),
    "kineto": "PyTorch profiler",
    "memory-snapshot": "PyTorch",
    "ascend": "Ascend PyTorch profiler",
    "perfetto": "any program",
}
"""The program that writes a format, unless files state which of several it is."""
STATED = (
    "rocprof",
    "rocprofv3",
    "rocmProfileData",
    "Proton",
    "XLA profiler",
    "NCCL Inspector",
    "NCCL profiler plug-in",
)
OTHER_PROFILER = {"nccl": "PyTorch flight recorder"}
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
FACTS = "capture_info"

NO_TABLE = "the export has no such table"
NO_COLUMN = "the export has no such column"
NO_FACT = "the export does not contain it"
NO_JSON = "exported without --include-json"
OTHER_NSYS = "recorded by one nsys, exported by another"
ONLY_EXPORTS = "only exports have one"
BY_DLPROF = "only exports that DLProf read have one"
DIFFERS = "differs"
REASONS = (NO_TABLE, NO_COLUMN, NO_FACT, NO_JSON, OTHER_NSYS, ONLY_EXPORTS, BY_DLPROF)

OF_DLPROF = ("gpu_count", "cpu_model", "driver_version", "framework", "cuda_version", "cudnn_version", "nsys_version")
KNOWN = {"tool_version": OTHER_NSYS, "schema_version": ONLY_EXPORTS, **dict.fromkeys(OF_DLPROF, BY_DLPROF)}
"""Facts that are not equal for a reason."""

Pair = tuple[Path, Path]


@dataclass
class Support:
    """What was compared of the reports of one build."""

    pairs: int = 0
    tables: Counter[str] = field(default_factory=Counter)
    columns: set[str] = field(default_factory=set)
    filled: set[str] = field(default_factory=set)
    unequal: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def row(self, build: str) -> dict[str, Any]:
        """Return it as JSON."""
        unequal = {reason: sorted(columns) for reason, columns in sorted(self.unequal.items())}
        return {
            "build": build,
            "pairs": self.pairs,
            "tables": dict(sorted(self.tables.items())),
            "columns": len(self.columns),
            "filled": len(self.filled),
            "equal": len(self.columns.difference(*self.unequal.values())),
            "unequal": unequal,
        }


def own_pairs() -> list[Pair]:
    """The captures of this repository: report and export."""
    return list(_pairs(FIXTURES.glob("*.sqlite")))


def public_pairs() -> list[Pair]:
    """Public captures, but those whose report and export are known not to belong together."""
    return list(_pairs(p for p in CORPUS.glob("**/*.sqlite") if "MISMATCH" not in str(p)))


def build_of(pair: Pair) -> str:
    """Return the build of nsys that wrote a report."""
    with tk.load(pair[0]) as trace:
        return ".".join(trace.info["tool_version"].split(".")[:3])


def _pairs(exports: Iterable[Path]) -> Iterator[Pair]:
    for export in sorted(exports):
        report = next((p for s in REPORT_SUFFIXES if (p := export.with_suffix(s)).exists()), None)
        if report is not None:
            yield report, export


def matrix(pairs: Iterable[Pair]) -> list[dict[str, Any]]:
    """Compare pairs of report and export: one row a build, oldest first."""
    found: defaultdict[tuple[int, ...], Support] = defaultdict(Support)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        for report, export in pairs:
            with tk.load(report) as mine, tk.load(export) as theirs:
                build = tuple(map(int, build_of((report, export)).split(".")))
                _compare(mine, theirs, found[build])
    return [found[build].row(".".join(map(str, build))) for build in sorted(found)]


def _compare(mine: tk.Trace, theirs: tk.Trace, support: Support) -> None:
    assert theirs.path is not None
    sources = ExportCapture(Source(theirs.path)).tables.columns
    support.pairs += 1
    for name in schemas.tables():
        if name == FACTS:
            differing = _facts(mine.info, theirs.info)
            columns = {f"{name}.{fact}" for fact in mine.info.keys() | theirs.info.keys()}
            filled = {f"{name}.{fact}" for fact in theirs.info}
        else:
            a, b = plain(mine, name), plain(theirs, name)
            if not (a.height or b.height):
                continue
            support.tables[name] += b.height
            differing = {f"{name}.{c}": reason(name, c, b, sources) for c in a.columns if not equal(a, b, c)}
            columns = {f"{name}.{c}" for c in a.columns}
            filled = {f"{name}.{c}" for c in b.columns if b[c].count()}
        support.columns |= columns
        support.filled |= filled
        for column, why in differing.items():
            support.unequal[why].add(column)


def plain(trace: tk.Trace, name: str) -> pl.DataFrame:
    """Return a table with texts instead of dictionaries."""
    return trace.frame(name).with_columns(pl.col(pl.Categorical).cast(pl.String)).collect()


def equal(a: pl.DataFrame, b: pl.DataFrame, column: str) -> bool:
    """Whether a column is the same on every row."""
    return a.height == b.height and a[column].equals(b[column], null_equal=True)


def reason(table: str, column: str, export: pl.DataFrame, sources: dict[str, tuple[str, ...]]) -> str:
    """Say why a column of an export is not that of the report: it has none, or it has another."""
    origin = SOURCES[table]
    source, name = origin.locate_column(column)
    of = {n for t in (origin.labels if origin.is_union else (source,)) for n in sources.get(t, ())}
    if not of and not export.height:
        return NO_TABLE
    if column in ("payload_type", "payload_text") and not export["payload_text"].count():
        return NO_JSON
    absent = not of or (name.isidentifier() and name not in {*of, "rowid"})
    return NO_COLUMN if absent and not export[column].count() else DIFFERS


def _facts(mine: dict[str, str], theirs: dict[str, str]) -> dict[str, str]:
    """Name the facts that differ, and why."""
    found = {}
    for fact in mine.keys() | theirs.keys():
        if mine.get(fact) != theirs.get(fact):
            known = KNOWN.get(fact, DIFFERS)
            found[f"{FACTS}.{fact}"] = known if fact in theirs else NO_FACT
    return found


Origin = tuple[str, str, str, str]
"""The format, the profiler, its version and that of the schema of a capture."""


def read_origin(path: Path) -> Origin | None:
    """Return what a capture states about its origin, or None if a file is no capture, or one without any tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        try:
            with tk.load(path) as trace:
                info, name = trace.info, trace.format or ""
        except TracekitError:
            return None
    stated = info.get("tool", "")
    profiler = PROFILERS.get(name) or (stated if stated in STATED else OTHER_PROFILER.get(name, "any program"))
    return name, profiler, _shorten_version(info.get("tool_version")), _shorten_version(info.get("schema_version"))


def _shorten_version(text: str | None) -> str:
    """Return the first two numbers of a version, or an empty string."""
    numbers = re.match(r"v?(\d+(?:\.\d+)?)", text or "")
    return numbers[1] if numbers else ""


def own_captures() -> list[Path]:
    """The captures of this repository: files, and folders of files that are one capture."""
    folders = [FIXTURES / "train_amp_parquetdir", FIXTURES / "train_amp_arrowdir", FIXTURES / "rocm" / "csv"]
    files = [
        path
        for path in FIXTURES.rglob("*")
        if path.is_file() and path.relative_to(FIXTURES).parts[0] not in NO_CAPTURES
    ]
    return sorted([*folders, *(p for p in files if not any(p.is_relative_to(f) for f in folders))])


def public_captures() -> list[Path]:
    """Public captures, and other files beside them."""
    return sorted(path for path in PUBLIC.rglob("*") if path.is_file())


def list_versions(fixtures: Iterable[Origin], public: Iterable[Origin]) -> list[dict[str, Any]]:
    """Return a row per format and profiler, with the versions and the number of captures."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for origin, captures in (("fixtures", fixtures), ("public", public)):
        for name, profiler, version, schema in captures:
            row = rows.setdefault(
                (name, profiler),
                {"format": name, "profiler": profiler, "versions": [], "schemas": [], "fixtures": 0, "public": 0},
            )
            row[origin] += 1
            row["versions"] += [version] if version and version not in row["versions"] else []
            row["schemas"] += [schema] if schema and schema not in row["schemas"] else []
    for row in rows.values():
        for key in ("versions", "schemas"):
            row[key].sort(key=lambda text: tuple(map(int, text.split("."))))
    return [rows[key] for key in sorted(rows)]


def main() -> None:
    """Write the data of the documentation anew."""
    public = public_pairs()
    assert public, f"no captures in {CORPUS.relative_to(ROOT.parent)}"
    made = {"fixtures": matrix(own_pairs()), "public": matrix(public)}
    DATA.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    origins = [[o for path in paths if (o := read_origin(path))] for paths in (own_captures(), public_captures())]
    VERSIONS.write_text(json.dumps(list_versions(*origins), indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
