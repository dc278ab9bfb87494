"""Write the generated parts of the documentation: ``docs/generate.py``, or ``--check`` that they are up to date.

Between ``<!-- generated: NAME ARGUMENT -->`` and ``<!-- end -->`` stands what the function NAME makes. In blocks marked
``console``, what follows a line ``$ command`` is what the command prints, run in a folder with the fixtures.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from tracekit import cli, registry, schemas
from tracekit.core import reports
from tracekit.readers.nsys import versions

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_CONSOLE = re.compile(r"(```console\n)(.*?)(```\n)", re.DOTALL)


def tables() -> str:
    """Describe every declared table."""
    return "\n".join(_table(schema) for schema in schemas.tables().values())


def _table(schema: schemas.TableSchema) -> str:
    recorded = f" Recorded by `{schema.recorded_by}`." if schema.recorded_by else ""
    lines = [f"## {schema.name}\n", f"{schema.doc} Key: {', '.join(f'`{k}`' for k in schema.key)}.{recorded}\n"]
    lines += _columns(schema.columns)
    own = len(schema.columns)
    for how, more in (("correlation", schemas.correlated(schema.name)), ("a roll-up", schemas.rolled_up(schema))):
        if added := more.columns[own:]:
            lines += [f"\nAdded by {how}:\n", *_columns(added)]
    return "\n".join([*lines, ""])


def _columns(columns: tuple[schemas.Column, ...]) -> list[str]:
    rows = [(f"`{c.name}`", _type(c), _escaped(c.doc) + _reference(c)) for c in columns]
    return _grid(("column", "type", "meaning"), rows)


def _type(column: schemas.Column) -> str:
    return f"{column.type}{f', {column.unit}' if column.unit else ''}{' or null' if column.nullable else ''}"


def _reference(column: schemas.Column) -> str:
    return f" → `{column.references}`" if column.references else ""


def helps() -> str:
    """Show what ``--help`` prints, of the program and of every verb."""
    parent = click.Context(cli.cli, info_name="tracekit", terminal_width=100, **cli.cli.context_settings)
    parts = ["## tracekit\n", f"```text\n{cli.cli.get_help(parent)}\n```\n"]
    for verb in cli.VERBS:
        command = cli.cli.get_command(parent, verb)
        assert command is not None
        context = click.Context(command, parent=parent, info_name=verb, **cli.cli.context_settings)
        parts.append(f"## {verb}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def report_list() -> str:
    """List the reports."""
    old = {new: [o for o, n in reports.ALIASES.items() if n == new] for new in reports.REPORTS}
    rows = [
        (f"[`{r.name}`](#{r.name})", _escaped(r.doc), _listed(old[r.name]), _listed(r.options))
        for r in reports.REPORTS.values()
    ]
    return "\n".join(_grid(("report", "shows", "old names", "options"), rows)) + "\n"


def report_columns() -> str:
    """Show the columns of every report."""
    return "\n".join(map(_report, reports.REPORTS.values()))


def own_reports() -> str:
    """Show the reports that nsys does not have."""
    options = {r.name: f" Options: {_listed(r.options)}." if r.options else "" for r in reports.EXTRA_REPORTS.values()}
    return "\n".join(_report(r, options[r.name]) for r in reports.EXTRA_REPORTS.values())


def _report(report: reports.Report, more: str = "") -> str:
    titles = ", ".join(f"`{c.title}`" for c in report.columns)
    return f"### {report.name}\n\n{_escaped(report.doc)}{more}\n\n{titles}\n"


def formats() -> str:
    """List the formats that are read and written without plug-ins."""
    read, write = registry.readers(), registry.exporters()
    rows = []
    for name in sorted({*read, *write}):
        parts = [p[name] for p in (read, write) if name in p]
        marks = ("yes" if name in p else "" for p in (read, write))
        suffixes = dict.fromkeys(s for p in parts for s in p.suffixes)
        rows.append((f"`{name}`", *marks, _listed(suffixes), _escaped(parts[0].doc)))
    return "\n".join(_grid(("format", "read", "written", "suffixes", "what"), rows)) + "\n"


def added() -> str:
    """List the columns that came with some schema of nsys exports."""
    declared: dict[str, list[str]] = {}
    for table, schema in schemas.tables().items():
        for column in schema.columns:
            declared.setdefault(str(column.source), []).append(f"{table}.{column.name}")
    known = {**declared, "NVTX_EVENTS.binaryData": ["nvtx_ranges.payload_text", "nvtx_marks.payload_text"]}
    rows = [(_listed(known[a.column]), f"`{a.column}`", a.last_without, a.first_with) for a in versions.ADDED]
    return "\n".join(_grid(("column", "of an export", "last seen without in", "first seen in"), rows)) + "\n"


def origins() -> str:
    """List the tables that changed their name from one schema of nsys exports to another."""
    renamed = {"devices": versions.DEVICES, "contexts": versions.CONTEXTS}
    rows = [(f"`{name}`", f"`{o.table}`", o.schemas) for name, found in renamed.items() for o in found]
    rows += [("`capture_info`", f"`{table}`", seen) for table, seen in versions.FACT_TABLES.items()]
    return "\n".join(_grid(("table", "of an export", "schemas"), rows)) + "\n"


def support(path: str) -> str:
    """Show what of each build was compared with an export, and each column that is not equal."""
    listed: dict[str, list[dict[str, Any]]] = json.loads((ROOT / path).read_text("utf-8"))
    rows = [_supported(row, origin) for origin, found in listed.items() for row in found]
    heads = ("build", "captures", "pairs", "tables", "rows", "columns", "with values", "equal", "not equal, and why")
    builds = {row["build"] for found in listed.values() for row in found}
    pairs, values = (sum(_number(r[i]) for _, r in rows) for i in (2, 4))
    total = f"\n{pairs} pairs of {len(builds)} builds, {values:,} rows.\n"
    return "\n".join([*_grid(heads, [r for _, r in sorted(rows)]), total])


def _supported(row: dict[str, Any], origin: str) -> tuple[list[int], tuple[str, ...]]:
    unequal = "; ".join(f"{_by_table(columns)}: {reason}" for reason, columns in row["unequal"].items())
    counts = (str(row["pairs"]), str(len(row["tables"])), f"{sum(row['tables'].values()):,}")
    columns = (str(row["columns"]), str(row["filled"]), str(row["equal"]))
    return [int(n) for n in row["build"].split(".")], (row["build"], origin, *counts, *columns, unequal)


def _by_table(columns: list[str]) -> str:
    tables = dict.fromkeys(c.partition(".")[0] for c in columns)
    listed = {t: ", ".join(f"`{c.partition('.')[2]}`" for c in columns if c.startswith(f"{t}.")) for t in tables}
    return ", ".join(f"{names} of `{table}`" for table, names in listed.items())


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def support_by_table(path: str) -> str:
    """Show how many rows of each table were compared, of how many builds."""
    listed: dict[str, list[dict[str, Any]]] = json.loads((ROOT / path).read_text("utf-8"))
    found = [row for rows in listed.values() for row in rows]
    rows = []
    for name in schemas.tables():
        have = [row for row in found if row["tables"].get(name)]
        compared = sum(row["tables"][name] for row in have)
        rows.append((f"`{name}`", f"{compared:,}", str(len({row["build"] for row in have}))))
    return "\n".join([*_grid(("table", "rows compared", "of builds"), [r for r in rows if r[1] != "0"]), ""])


def code(path: str) -> str:
    """Show a file of the repository."""
    return f"```{Path(path).suffix.removeprefix('.')}\n{(ROOT / path).read_text('utf-8')}```\n"


def _grid(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(r)} |" for r in (heads, ("---",) * len(heads), *rows)]


def _listed(names: object) -> str:
    return ", ".join(f"`{n}`" for n in names)  # type: ignore[attr-defined]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


_REPORTS = (report_list, report_columns, own_reports)
_MADE = (tables, helps, *_REPORTS, formats, origins, added, support, support_by_table, code)
MAKERS = {f.__name__: f for f in _MADE}


def _generated(block: re.Match[str]) -> str:
    name, *arguments = block[2].split()
    return f"{block[1]}\n{MAKERS[name](*arguments)}\n{block[3]}"


def _executed(block: re.Match[str], folder: Path) -> str:
    commands = [line for line in block[2].splitlines(keepends=True) if line.startswith("$ ")]
    return block[1] + "".join(c + _printed(c.removeprefix("$ "), folder) for c in commands) + block[3]


def _printed(command: str, folder: Path) -> str:
    """Return what a command prints; blanks at the ends of lines are left out."""
    shell = f'tracekit() {{ {shlex.quote(sys.executable)} -m tracekit "$@"; }}\n{command}'
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", shell],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return "".join(line.rstrip() + "\n" for line in done.stdout.decode().splitlines())


def fresh(page: Path) -> str:
    """Return a page with its generated parts made anew."""
    text = _BLOCK.sub(_generated, page.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fixtures").symlink_to(ROOT / "fixtures")
        return _CONSOLE.sub(lambda block: _executed(block, Path(folder)), text)


def main(*arguments: str) -> int:
    """Write the pages, or check them."""
    stale = []
    for page in PAGES:
        text = fresh(page)
        if text != page.read_text("utf-8"):
            stale.append(page.relative_to(ROOT))
            if "--check" not in arguments:
                page.write_text(text, "utf-8")
    verb = "out of date, run docs/generate.py:" if "--check" in arguments else "written:"
    if stale:
        print(verb, *stale)
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
