"""The names of tables, reports, rules, recipes, formats and commands as ``Literal`` types.

They are the content of ``tracekit/text/names.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import tracekit
from tracekit import cli, registry, schemas
from tracekit.core import analyze, recipes, reports
from tracekit.core.dlprof.reports import REPORTS as DLPROF_REPORTS

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = Path(tracekit.__file__).parent / "text" / "names.py"
_HEAD = '''"""The names of tables, reports, rules, recipes, formats and commands for type checkers and hints.

``make generate`` writes this module.
"""

from __future__ import annotations

from typing import Literal, TypeAlias
'''


def reports_with_options() -> Iterable[str]:
    """Return the name of each report, followed by the name with each of its options that has no value."""
    for name, report in {**reports.REPORTS, **reports.EXTRA_REPORTS}.items():
        yield name
        yield from (f"{name}:{option}" for option in sorted(report.options))
    yield from DLPROF_REPORTS


def literals() -> dict[str, tuple[str, list[str]]]:
    """Return the description and the names of each ``Literal``, by name of the type."""
    read = sorted(registry.BUILTIN_READERS)
    return {
        "TableName": ("Name of a declared table.", list(schemas.table_names())),
        "ReportName": (
            "Name of a report of nsys, DLProf or tracekit, with or without an option that has no value.",
            list(reports_with_options()),
        ),
        "RuleName": ("Name of a rule.", list(analyze.ALL_RULES)),
        "RecipeName": ("Name of a recipe.", list(recipes.RECIPES)),
        "ReaderName": (
            "Name of a format that tracekit reads. Plug-ins add others.",
            read,
        ),
        "ExporterName": (
            "Name of a format that tracekit writes. Plug-ins add others.",
            sorted(registry.BUILTIN_EXPORTERS),
        ),
        "CommandName": ("Name of a command of the command line.", sorted(cli.COMMANDS)),
    }


def text() -> str:
    """Return the content of the module."""
    parts = [_HEAD]
    for name, (doc, names) in literals().items():
        lines = "".join(f'    "{n}",\n' for n in names)
        parts.append(f'\n{name}: TypeAlias = Literal[\n{lines}]\n"""{doc}"""\n')
    return "".join(parts)
