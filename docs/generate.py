"""Write the generated parts of the documentation, or check with ``--check`` that they are up to date.

The text between ``<!-- generated: NAME ARGUMENT -->`` and ``<!-- end -->`` is the result of the function NAME. In
blocks marked ``console``, the lines after ``$ command`` are its output, run in a folder with the fixtures.
"""

from __future__ import annotations

import ast
import csv
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import tracekit as tk
from tracekit import cli, registry, schemas
from tracekit.core import compare
from tracekit.core.diagnosis import causes, cures, ledger
from tracekit.readers.nsys import mapping, versions
from tracekit.registry.analyses import RECIPE, REPORT, RULE, Analysis, list_analyses
from tracekit.text.deprecations import DEPRECATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_GENERATED_BLOCK = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->\n)", re.DOTALL)
_CONSOLE_BLOCK = re.compile(r"(```console\n)(.*?)(```\n)", re.DOTALL)


def tables() -> str:
    """Return a section for every declared table."""
    return "\n".join(_table_section(schema) for schema in schemas.tables().values())


def _table_section(schema: schemas.TableSchema) -> str:
    """Return a section with the description and columns of a table."""
    commands = (schema.recorded_by or "").split(" or ")
    *first, last = (f"`{c}`" for c in commands)
    recorded = (
        f" Recorded by {' or '.join([*([', '.join(first)] if first else []), last])}." if schema.recorded_by else ""
    )
    lines = [f"## {schema.name}\n", f"{schema.doc} Key: {', '.join(f'`{k}`' for k in schema.key)}.{recorded}\n"]
    lines += _column_grid(schema.columns)
    count = len(schema.columns)
    for operation, extended in (
        ("correlation", schemas.correlated_schema(schema.name)),
        ("a roll-up", schemas.add_rollup_columns_to_schema(schema)),
    ):
        if columns := extended.columns[count:]:
            lines += [f"\nAdded by {operation}:\n", *_column_grid(columns)]
    return "\n".join([*lines, ""])


def _column_grid(columns: tuple[schemas.Column, ...]) -> list[str]:
    """Return a table of columns with type and meaning."""
    rows = [(f"`{c.name}`", _type_text(c), _escape_markdown(c.doc) + _reference_text(c)) for c in columns]
    return _grid(("column", "type", "meaning"), rows)


def _type_text(column: schemas.Column) -> str:
    """Return the type, unit and nullability of a column."""
    return f"{column.type}{f', {column.unit}' if column.unit else ''}{' or null' if column.nullable else ''}"


def _reference_text(column: schemas.Column) -> str:
    """Return an arrow to the column that a column refers to; empty if there is none."""
    return f" → `{column.references}`" if column.references else ""


def command_help() -> str:
    """Return the output of ``--help`` for the program and every command."""
    parent = click.Context(cli.cli, info_name="tracekit", terminal_width=100, **cli.cli.context_settings)
    parts = ["## tracekit\n", f"```text\n{cli.cli.get_help(parent)}\n```\n"]
    for name in cli.COMMANDS:
        command = cli.cli.get_command(parent, name)
        assert command is not None
        context = click.Context(command, parent=parent, info_name=name, **cli.cli.context_settings)
        parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def report_list() -> str:
    """Return a table of the reports that follow nsys."""
    rows = [
        (f"[`{r.name}`](#{r.name})", _escape_markdown(r.doc), _code_list(r.old_names), _code_list(_options(r)))
        for r in _list_analyses(REPORT, "nsys")
    ]
    return "\n".join(_grid(("report", "shows", "old names", "options"), rows)) + "\n"


def _list_analyses(kind: str, *origins: str) -> list[Analysis]:
    """Return the analyses of a kind that tools define, or all of them if there are no ``origins``."""
    return [each for each in list_analyses(kind).values() if not origins or each.origin in origins]


def _options(analysis: Analysis) -> list[str]:
    """Return the options of an analysis as text. Options with a value are followed by their default value."""
    return [o.name if o.type == "flag" else f"{o.name}={o.default}" for o in analysis.options]


def report_columns() -> str:
    """Return a section with the columns of every report that follows nsys."""
    return "\n".join(map(_report_section, _list_analyses(REPORT, "nsys")))


def tracekit_reports() -> str:
    """Return a section for every report that nsys and DLProf do not have."""
    return "\n".join(map(_report_section, _list_analyses(REPORT, "tracekit")))


def _report_section(report: Analysis) -> str:
    """Return a section with the description, options and columns of a report."""
    options = f" Options: {_code_list(_options(report))}." if report.options and report.origin == "tracekit" else ""
    grid = "\n".join(_result_grid(report.columns))
    return f"### {report.name}\n\n{_escape_markdown(report.doc)}{options}\n\n{grid}\n"


def _result_grid(columns: tuple[schemas.Column, ...]) -> list[str]:
    """Return a table of the columns of a result with unit and meaning."""
    rows = [(f"`{c.name.strip()}`", c.unit or "", _escape_markdown(c.doc)) for c in columns]
    return _grid(("column", "unit", "meaning"), rows)


def kernel_categories() -> str:
    """Return a table of the categories of kernels, and of the projects whose names the rules know."""
    rules = schemas.load_kernel_rules()
    sources: dict[str, dict[str, None]] = {name: {} for name in rules["categories"]}
    for rule in rules["rules"]:
        sources[rule["category"]] |= dict.fromkeys(source.partition(":")[0] for source in rule["sources"])
    rows = [
        (f"`{name}`", _escape_markdown(doc), _escape_markdown(", ".join(sources[name])))
        for name, doc in rules["categories"].items()
    ]
    return "\n".join(_grid(("category", "kernels", "names of"), rows)) + "\n"


def serving_annotations() -> str:
    """Return a table of the ranges with which frameworks mark steps and phases."""
    rows = [
        (rule["framework"], "<br>".join(f"`{e}`" for e in rule["examples"]), _escape_markdown(rule["doc"]))
        for rule in schemas.load_serving_annotations()["annotations"]
    ]
    return "\n".join(_grid(("framework", "name of the range", "tells"), rows)) + "\n"


def rule_list() -> str:
    """Return a table of all rules."""
    rows = [(f"[`{r.name}`](#{r.name})", _escape_markdown(r.doc)) for r in _list_analyses(RULE)]
    return "\n".join(_grid(("rule", "finds"), rows)) + "\n"


def rule_columns() -> str:
    """Return a section with the columns and options of every rule."""
    return "\n".join(map(_rule_section, _list_analyses(RULE)))


def idle_causes() -> str:
    """Return a table of the idle parts of the ledger."""
    rows = [(f"`{part}`", ledger.MEANINGS[part]) for part in ledger.IDLE_PARTS]
    return "\n".join(_grid(("cause", "meaning"), rows)) + "\n"


def _rule_section(rule: Analysis) -> str:
    """Return a section with the description, columns and options of a rule."""
    rows = [(f"`{o.name}`", "" if o.default is None else str(o.default), o.doc) for o in rule.options]
    options = "\n".join(_grid(("option", "default", "meaning"), rows))
    columns = "\n".join(_result_grid(rule.columns))
    return f"### {rule.name}\n\n{_escape_markdown(rule.doc)}\n\n{columns}\n\n{options}\n"


def diff_metrics() -> str:
    """Return a table of the metrics of conditions."""
    docs = {name: metric.doc for name, metric in compare.METRICS.items()} | compare.ROW_COUNTS
    return "\n".join(_grid(("metric", "value"), [(f"`{name}`", doc) for name, doc in docs.items()]))


def formats() -> str:
    """Return a table of the built-in formats."""
    read, write = registry.readers(), registry.exporters()
    rows = []
    for name in sorted({*read, *write}):
        handlers = [p[name] for p in (read, write) if name in p]
        marks = ("yes" if name in p else "" for p in (read, write))
        suffixes = dict.fromkeys(s for p in handlers for s in p.suffixes)
        rows.append((f"`{name}`", *marks, _code_list(suffixes), _escape_markdown(handlers[0].doc)))
    return "\n".join(_grid(("format", "read", "written", "suffixes", "content"), rows)) + "\n"


def added_columns() -> str:
    """Return a table of the columns that later schema versions of nsys exports added, as Markdown."""
    declared: dict[str, list[str]] = {}
    for table, sources in mapping.SOURCES.items():
        for column in sources.columns:
            declared.setdefault(".".join(sources.locate_column(column)), []).append(f"{table}.{column}")
    columns = {**declared, "NVTX_EVENTS.binaryData": ["nvtx_ranges.payload_text", "nvtx_marks.payload_text"]}
    rows = [(_code_list(columns[a.column]), f"`{a.column}`", a.last_without, a.first_with) for a in versions.ADDED]
    return (
        "\n".join(_grid(("column", "column of an export", "newest schema without it", "oldest schema with it"), rows))
        + "\n"
    )


def renamed_tables() -> str:
    """Return a table of the source tables whose names differ between schema versions of nsys exports, as Markdown."""
    renamed = {"devices": versions.DEVICES, "contexts": versions.CONTEXTS}
    rows = [(f"`{name}`", f"`{o.table}`", o.schemas) for name, origins in renamed.items() for o in origins]
    rows += [("`capture_info`", f"`{table}`", seen) for table, seen in versions.FACT_TABLES.items()]
    return "\n".join(_grid(("table", "table of an export", "schema versions"), rows)) + "\n"


def support(path: str) -> str:
    """Return a table of the builds that were compared with exports, with the columns that are not equal."""
    listed: dict[str, list[dict[str, Any]]] = json.loads((ROOT / path).read_text("utf-8"))
    rows = [_build_row(row, origin) for origin, builds in listed.items() for row in builds]
    heads = ("build", "captures", "pairs", "tables", "rows", "columns", "with values", "equal", "not equal, and why")
    names = {build["build"] for group in listed.values() for build in group}
    pairs, values = (sum(_parse_number(r[i]) for _, r in rows) for i in (2, 4))
    total = f"\n{pairs} pairs of {len(names)} builds, {values:,} rows.\n"
    return "\n".join([*_grid(heads, [r for _, r in sorted(rows)]), total])


def tested_versions(path: str) -> str:
    """Return a table of the captures that were read, by format and profiler, with the versions that they state."""
    listed: list[dict[str, Any]] = json.loads((ROOT / path).read_text("utf-8"))
    rows = [
        (
            f"`{row['format']}`",
            _escape_markdown(row["profiler"]),
            ", ".join(row["versions"]) or "none",
            ", ".join(row["schemas"]) or "none",
            str(row["fixtures"] or ""),
            str(row["public"] or ""),
        )
        for row in listed
    ]
    heads = (
        "format",
        "written by",
        "versions that files state",
        "versions of the format",
        "fixtures",
        "public captures",
    )
    return "\n".join([*_grid(heads, rows), ""])


def deprecations() -> str:
    """Return a table of the names that still work, with the version that removes them."""
    rows = [
        (f"`{each.name}`", _escape_markdown(each.use), each.since, f"{each.removed_in}, not before {each.not_before}")
        for each in DEPRECATIONS.values()
    ]
    return "\n".join([*_grid(("former name", "use instead", "deprecated since", "removed in"), rows), ""])


def _build_row(row: dict[str, Any], origin: str) -> tuple[list[int], tuple[str, ...]]:
    """Return the cells for one build, after its version as a sort key."""
    unequal = "; ".join(f"{_group_by_table(columns)}: {reason}" for reason, columns in row["unequal"].items())
    counts = (str(row["pairs"]), str(len(row["tables"])), f"{sum(row['tables'].values()):,}")
    columns = (str(row["columns"]), str(row["filled"]), str(row["equal"]))
    return [int(n) for n in row["build"].split(".")], (row["build"], origin, *counts, *columns, unequal)


def _group_by_table(columns: list[str]) -> str:
    """Return a list of columns ``TABLE.COLUMN`` as text, grouped by table."""
    tables = dict.fromkeys(c.partition(".")[0] for c in columns)
    listed = {t: ", ".join(f"`{c.partition('.')[2]}`" for c in columns if c.startswith(f"{t}.")) for t in tables}
    return ", ".join(f"{names} of `{table}`" for table, names in listed.items())


def _parse_number(text: str) -> int:
    """Parse a number with thousands separators."""
    return int(text.replace(",", ""))


def support_by_table(path: str) -> str:
    """Return a table of the number of compared rows and builds per table."""
    listed: dict[str, list[dict[str, Any]]] = json.loads((ROOT / path).read_text("utf-8"))
    builds = [row for rows in listed.values() for row in rows]
    rows = []
    for name in schemas.tables():
        with_table = [row for row in builds if row["tables"].get(name)]
        compared = sum(row["tables"][name] for row in with_table)
        rows.append((f"`{name}`", f"{compared:,}", str(len({row["build"] for row in with_table}))))
    return "\n".join([*_grid(("table", "rows compared", "of builds"), [r for r in rows if r[1] != "0"]), ""])


def read_tables(*paths: str) -> str:
    """Return a table of what is read from files of one format, and of what they contain that is not read."""
    rows, undecoded = [], []
    for path in paths:
        with tk.load(ROOT / path) as trace:
            for name in sorted(n for n in trace.tables if trace.count(n)):
                table = trace[name]
                values = [c for c in table.column_names if table[c].null_count < table.num_rows]
                rows.append((f"`{Path(path).name}`", f"`{name}`", f"{table.num_rows:,}", _code_list(values)))
            undecoded += [(f"`{Path(path).name}`", f"`{kind}`", f"{n.count:,}") for kind, n in trace.undecoded.items()]
    lines = _grid(("file", "table", "rows", "columns with values"), rows)
    if undecoded:
        lines += ["", "Not read:", "", *_grid(("file", "events", "number"), undecoded)]
    return "\n".join([*lines, ""])


def recipe_list() -> str:
    """Return a table of all recipes with their options and tables."""
    rows = [
        (
            f"`{r.name}`",
            _escape_markdown(r.doc),
            _code_list(o.name for o in r.options),
            _code_list(result.name for result in r.results),
        )
        for r in _list_analyses(RECIPE)
    ]
    return "\n".join([*_grid(("recipe", "shows", "options", "tables"), rows), ""])


def why_parts() -> str:
    """Return a table of the parts of a step and their classes."""
    rows = [(f"`{part}`", f"`{group}`", ledger.MEANINGS[part]) for part, group in ledger.PARTS.items()]
    return "\n".join([*_grid(("part", "class", "meaning"), rows), ""])


def why_causes() -> str:
    """Return a table of the causes of slow steps, in the order of their declaration."""
    rows = [(f"`{c.name}`", c.meaning, causes.get_check(c.name)) for c in causes.CAUSES.values()]
    return "\n".join([*_grid(("cause", "meaning", "how to check a change"), rows), ""])


def why_changes() -> str:
    """Return a table of what to change, by cause and framework."""
    rows = [
        (f"`{cause.name}`", _FRAMEWORKS[framework], _escape_markdown(change))
        for cause in causes.CAUSES.values()
        for framework, change in cause.changes.items()
    ]
    return "\n".join([*_grid(("cause", "framework", "change"), rows), ""])


_FRAMEWORKS = {
    "pytorch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "cuda": "CUDA",
    "any": "all others",
}


def why_shares() -> str:
    """Return a table of the shares of time that stay after a cure, as the rules state them."""
    rows = []
    for module in (m for m in vars(causes).values() if inspect.ismodule(m)):
        source = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
        for function in (node for node in source.body if isinstance(node, ast.FunctionDef)):
            rows += _read_shares(function, vars(module))
    heads = ("cause", "time of", "low saving", "likely saving", "high saving")
    return "\n".join([*_grid(heads, list(dict.fromkeys(rows))), ""])


def _read_shares(function: ast.FunctionDef, names: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the causes, the side and the three shares for each group of events that a rule claims."""
    nodes = list(ast.walk(function))
    calls = [(n, getattr(n.func, "attr", getattr(n.func, "id", ""))) for n in nodes if isinstance(n, ast.Call)]
    claims = {id(call) for call, name in calls if name == "take_items"}
    pairs = [n for n in nodes if isinstance(n, ast.Tuple) and n.elts and id(n.elts[0]) in claims]
    shares = [(p.lineno, "CPU", p.elts[1]) for p in pairs]
    shares += [(call.lineno, "GPU", call.args[1]) for call, name in calls if name == "scale_operations"]
    starts = sorted((call.lineno, i) for i, (call, name) in enumerate(calls) if name == "Cure")
    for line, side, value in sorted(shares, key=lambda row: row[:2]):
        own = next((i for start, i in reversed(starts) if start <= line), None)
        stays = (
            ast.parse(repr(names.get(ast.unparse(value))), mode="eval").body if isinstance(value, ast.Name) else value
        )
        if own is not None and isinstance(stays, ast.Tuple):
            yield _code_list(_read_strings(function, calls[own][0].args[0])), side, *map(_format_share, stays.elts)


def _format_share(value: ast.expr) -> str:
    """Return a number in percent, or an expression as code."""
    return f"{value.value:.0%}" if isinstance(value, ast.Constant) else f"`{ast.unparse(value)}`"


def _read_strings(function: ast.FunctionDef, value: ast.expr) -> list[str]:
    """Return the strings that an expression can be, which may be a variable of a function."""
    names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
    assigned = [n.value for n in ast.walk(function) if isinstance(n, ast.Assign) if ast.unparse(n.targets[0]) in names]
    constants = [n for expression in (value, *assigned) for n in ast.walk(expression) if isinstance(n, ast.Constant)]
    return [n.value for n in constants if isinstance(n.value, str)]


def why_scales() -> str:
    """Return a table of the scales between which the CPU ran without a profiler."""
    sets = [(name, value) for name, value in vars(cures).items() if name.startswith("SCALES")]
    rows = [
        (_PROFILERS.get(name, name), _SCALE_NAMES[i], *(f"{v:g}" for v in scales))
        for name, value in sets
        for i, scales in enumerate(value)
    ]
    return "\n".join([*_grid(("capture", "case", "work of the program", "launching", "irregular pauses"), rows), ""])


_PROFILERS = {
    "SCALES": "Nsight Systems",
    "SCALES_OF_EMIT_NVTX": "Nsight Systems, with `emit_nvtx`",
    "SCALES_OF_PYTORCH": "PyTorch profiler",
}
_SCALE_NAMES = ("as recorded", "likely", "fast CPU", "fast launching")


def why_json() -> str:
    """Return tables of the fields of what ``tracekit why --format json`` prints."""
    schema = json.loads((ROOT / "schemas" / "why.json").read_text("utf-8"))
    return _format_objects({"The envelope": schema} | {f"`{name}`": d for name, d in schema["$defs"].items()})


def answer_json() -> str:
    """Return tables of the fields of what ``--format answer`` prints, without those of ``why`` and ``what-if``."""
    schema, why, what_if = (
        json.loads((ROOT / "schemas" / f"{name}.json").read_text("utf-8")) for name in ("answer", "why", "what_if")
    )
    objects = {name: d for name, d in schema["$defs"].items() if name not in {**why["$defs"], **what_if["$defs"]}}
    return _format_objects({"The envelope": schema} | {f"`{name}`": each for name, each in reversed(objects.items())})


def _format_objects(objects: dict[str, Any]) -> str:
    """Return a table of the fields of each object, given its JSON Schema by title."""
    parts = []
    for title, definition in objects.items():
        rows = [
            (f"`{name}`", _json_type(field), _escape_backticked(field.get("description", "")))
            for name, field in definition["properties"].items()
        ]
        parts.append("\n".join([f"{title}:\n", *_grid(("field", "type", "meaning"), rows), ""]))
    return "\n".join(parts)


def _json_type(field: dict[str, Any]) -> str:
    """Return the type of a field of a JSON Schema as text."""
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "anyOf" in field:
        return " or ".join(map(_json_type, field["anyOf"]))
    if not field:
        return "any value"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    names = field.get("type", "string")
    text = names if isinstance(names, str) else " or ".join(names)
    return f"array of {_json_type(field['items'])}" if text == "array" else text


def _escape_backticked(text: str) -> str:
    """Escape text for a Markdown table, except for code."""
    return "`".join(part if i % 2 else _escape_markdown(part) for i, part in enumerate(text.split("`")))


def answer_scores(form: str = "") -> str:
    """Return the table of the scores of all tools, for one kind of captures, one use of them, or all."""
    from tests.benchmarks.answers import page

    return "\n".join([*page.build_table(page.read(), lambda question: form in ("", question.form, question.seen)), ""])


def answer_marks() -> str:
    """Return the table of the marks for each question."""
    from tests.benchmarks.answers import page

    return "\n".join([*page.build_question_table(page.read()), ""])


def answer_causes() -> str:
    """Return the table of the causes that answers may name."""
    from tests.benchmarks.answers import questions

    causes = questions.read_causes()["causes"]
    rows = [
        (f"`{n}`", ", ".join(c["synonyms"]), _code_list(c["classes"]), _code_list(c["tables"]))
        for n, c in causes.items()
    ]
    return "\n".join([*_grid(("cause", "synonyms", "classes", "tables with evidence"), rows), ""])


def exporter_options(format_name: str) -> str:
    """Return a table of the options of an exporter."""
    rows = [(f"`{option.name}`", _escape_markdown(option.doc)) for option in registry.exporter(format_name).options]
    return "\n".join([*_grid(("option", "meaning"), rows), ""])


def code(path: str) -> str:
    """Return a file of the repository as a code block."""
    return f"```{Path(path).suffix.removeprefix('.')}\n{(ROOT / path).read_text('utf-8')}```\n"


def install_sizes() -> str:
    """Return a table of the size of an installation, of what each part adds, and of the time that this takes."""
    rows = [
        (
            f"`{row['part']}` adds" if row["part"] else "default",
            row["packages"],
            f"{row['download_mb']} MB",
            f"{row['installed_mb']} MB",
            f"{row['pip_seconds']} s",
            f"{row['uv_seconds']} s",
        )
        for row in _read_csv("docs/install_sizes.csv")
    ]
    return "\n".join([*_grid(("installation", "packages", "download", "on the disk", "pip", "uv"), rows), ""])


def wheels() -> str:
    """Return a table of the systems for which packages have wheels, and a list of those that need no table."""
    packages = {row["package"]: row for row in _read_csv("docs/wheels.csv")}
    rows = [
        (
            f"`{name}` {row['version']}",
            f"`{row['part'] or 'tracekit'}`",
            *map(_describe_versions, _list_systems(row).values()),
        )
        for name, row in packages.items()
        if row["pure"] == "False"
    ]
    systems = list(_list_systems(next(iter(packages.values()))))
    pure = _code_list(sorted(name for name, row in packages.items() if row["pure"] == "True"))
    return "\n".join([*_grid(("package", "part", *systems), rows), f"\nOn every system: {pure}.\n"])


def missing_wheels() -> str:
    """Return a table of the wheels that are missing, and of what this means.

    Raises:
        LookupError: It is not known what the missing wheels of a package mean.
    """
    rows = []
    for row in _read_csv("docs/wheels.csv"):
        missing = [name for name, versions in _list_systems(row).items() if versions not in (_ALL, "-")]
        if missing and row["package"] not in _MISSING_WHEELS:
            raise LookupError(f"{row['package']} has no wheels for {', '.join(missing)}: explain it in _MISSING_WHEELS")
        if missing:
            rows.append((f"`{row['package']}`", ", ".join(missing), _MISSING_WHEELS[row["package"]]))
    return "\n".join([*_grid(("package", "no wheels for", "what it means"), rows), ""])


_ALPINE = "tracekit cannot be installed on Alpine Linux. Use an image with glibc, such as one of Debian."
_MISSING_WHEELS = {
    "adbc-driver-manager": _ALPINE,
    "adbc-driver-sqlite": _ALPINE,
    "pyarrow": "On Windows on arm64, install Python for x86-64, which Windows emulates.",
    "pyyaml": "The part `dask` needs Python 3.12 or newer there.",
    "duckdb": "The part `mcp` cannot be installed on Alpine Linux.",
    "cryptography": "The part `mcp` cannot be installed there without a Rust compiler and OpenSSL.",
}
"""What the missing wheels of a package mean, by package."""
_ALL = "3.11 3.12 3.13 3.14"


def _list_systems(row: dict[str, str]) -> dict[str, str]:
    """Return the versions of Python for which a package has wheels, by system."""
    return {name: versions for name, versions in row.items() if " " in name}


def _describe_versions(versions: str) -> str:
    """Return a cell of the table of wheels."""
    first, *others = versions.split() or ["no"]
    return (
        "yes" if versions == _ALL else "not needed" if first == "-" else f"{first} to {others[-1]}" if others else first
    )


def _read_csv(path: str) -> list[dict[str, str]]:
    with (ROOT / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def counted_work(path: str) -> str:
    """Return a table of computed and counted operations, and the reason for each difference."""
    with (ROOT / path).open(encoding="utf-8") as file:
        rows = [
            (
                _escape_markdown(row["case"].split(" ", 2)[2]),
                row["type"],
                f"{int(row['computed_flop']) / 1e9:,.3f}",
                f"{int(row['counted_flop']) / 1e9:,.3f}",
                f"{(int(row['computed_flop']) / int(row['counted_flop']) - 1) * 100:+.1f} %",
                row["reason"],
            )
            for row in csv.DictReader(file)
            if row["computed_flop"]
        ]
    heads = ("call", "type", "computed GFLOP", "counted GFLOP", "difference", "reason")
    return "\n".join([*_grid(heads, rows), ""])


def _grid(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [f"| {' | '.join(r)} |" for r in (heads, ("---",) * len(heads), *rows)]


def _code_list(names: object) -> str:
    """Return names as a comma-separated list of code spans."""
    return ", ".join(f"`{n}`" for n in names)  # type: ignore[attr-defined]


def _escape_markdown(text: str) -> str:
    """Escape characters that have a meaning in Markdown tables."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def mcp_tools() -> str:
    """Return a table of the tools of the server for assistants."""
    tree = ast.parse((ROOT / "tracekit" / "mcp" / "server.py").read_text("utf-8"))
    tools = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "CaptureTools")
    rows = []
    for each in tools.body:
        if isinstance(each, ast.AsyncFunctionDef) and not each.name.startswith("_"):
            names = [a.arg for a in [*each.args.args, *each.args.kwonlyargs] if a.arg != "self"]
            doc = (ast.get_docstring(each) or "").partition("\n")[0]
            rows.append((f"`{each.name}`", _escape_markdown(doc), _code_list(names)))
    return "\n".join(_grid(("tool", "answer", "arguments"), rows)) + "\n"


_REPORT_GENERATORS = (report_list, report_columns, tracekit_reports)
_VERSION_GENERATORS = (renamed_tables, added_columns, support, support_by_table, tested_versions, deprecations)
_RULE_GENERATORS = (rule_list, rule_columns, idle_causes)
_WHY_GENERATORS = (why_parts, why_causes, why_changes, why_shares, why_scales, why_json)
_ANSWER_GENERATORS = (mcp_tools, answer_json, answer_scores, answer_marks, answer_causes)
_SERVING_GENERATORS = (kernel_categories, serving_annotations)
_INSTALL_GENERATORS = (install_sizes, wheels, missing_wheels)
_GENERATORS = (
    tables,
    command_help,
    diff_metrics,
    *_REPORT_GENERATORS,
    *_RULE_GENERATORS,
    *_WHY_GENERATORS,
    *_SERVING_GENERATORS,
    *_ANSWER_GENERATORS,
    *_INSTALL_GENERATORS,
    recipe_list,
    formats,
    read_tables,
    exporter_options,
    counted_work,
    *_VERSION_GENERATORS,
    code,
)
GENERATORS = {f.__name__: f for f in _GENERATORS}


def _regenerate_block(block: re.Match[str]) -> str:
    """Return a generated block with its current content."""
    name, *arguments = block[2].split()
    return f"{block[1]}\n{GENERATORS[name](*arguments)}\n{block[3]}"


def _run_console_block(block: re.Match[str], folder: Path) -> str:
    """Return a console block with the current output of its commands."""
    commands = [line for line in block[2].splitlines(keepends=True) if line.startswith("$ ")]
    return block[1] + "".join(c + _command_output(c.removeprefix("$ "), folder) for c in commands) + block[3]


def _command_output(command: str, folder: Path) -> str:
    """Run a command and return its output without spaces at the ends of lines.

    The programs of tracekit are forked from one process, so that the package is imported once. Only what follows them
    in a pipeline is run by the shell. ``> FILE`` writes the output of a program of tracekit to a file.
    """
    from tests import fork_server

    program, *rest = command.rstrip().split(" | ", 1)
    if program.startswith("tracekit "):
        words = shlex.split(program)[1:]
        target = words[-1] if ">" in words[-2:-1] else None
        arguments = [sys.executable, "-m", "tracekit", *(words[:-2] if target else words)]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as piped, Path(os.devnull).open("rb") as none:
            streams = [none.fileno(), (piped if rest else output).fileno(), output.fileno()]
            fork_server.run(arguments, cwd=folder, streams=streams)
            piped.seek(0)
            for shell in rest:
                subprocess.run(["bash", "-c", shell], cwd=folder, stdin=piped, stdout=output, check=False)
            output.seek(0)
            printed = output.read().decode()
        if target:
            (folder / target).write_text(printed, "utf-8")
            printed = ""
    else:
        printed = subprocess.run(
            ["bash", "-c", command], cwd=folder, stdout=subprocess.PIPE, check=False
        ).stdout.decode()
    if "Traceback (most recent call last)" in printed:
        raise RuntimeError(f"a command of the documentation failed:\n{command}\n{printed}")
    return "".join(line.rstrip() + "\n" for line in printed.splitlines())


def regenerate(page: Path) -> str:
    """Return the text of a page with its generated parts up to date."""
    text = _GENERATED_BLOCK.sub(_regenerate_block, page.read_text("utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "fixtures").symlink_to(ROOT / "fixtures")
        return _CONSOLE_BLOCK.sub(lambda block: _run_console_block(block, Path(folder)), text)


def main(*arguments: str) -> int:
    """Write the pages that are out of date, or report them with ``--check``; return the exit status."""
    stale = []
    with ThreadPoolExecutor(2) as pool:
        texts = dict(zip(PAGES, pool.map(regenerate, PAGES), strict=True))
    for page, text in texts.items():
        if text != page.read_text("utf-8"):
            stale.append(page.relative_to(ROOT))
            if "--check" not in arguments:
                page.write_text(text, "utf-8")
    verb = "out of date, run docs/generate.py:" if "--check" in arguments else "written:"
    if stale:
        print(verb, *stale)
    return int(bool(stale) and "--check" in arguments)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(*sys.argv[1:]))
