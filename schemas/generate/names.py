"""The names of tables, reports, rules, recipes, formats and commands, and the types of options, for type checkers.

They are the content of ``tracekit/text/names.py``.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import tracekit
from tracekit import cli, registry, schemas
from tracekit.registry.analyses import RECIPE, REPORT, RULE, Option, list_analyses, list_names

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = Path(tracekit.__file__).parent / "text" / "names.py"
_HEAD = '''"""The names of tables, reports, rules, recipes, formats and commands for type checkers and hints.

``make generate`` writes this module.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypedDict
'''
_RECIPE_OPTIONS = '''

class RecipeOptions(TypedDict, total=False):
    """Options of recipes. Each recipe has some of them.

    Attributes:
{docs}
    """

{types}
'''


def reports_with_options() -> Iterable[str]:
    """Return the name of each report, followed by the name with each of its options that has no value."""
    for name, report in list_analyses(REPORT).items():
        yield name
        yield from sorted(f"{name}:{option.name}" for option in report.options if option.type == "flag")


def recipe_options() -> dict[str, Option]:
    """Return the options of all recipes by name."""
    return {option.name: option for recipe in list_analyses(RECIPE).values() for option in recipe.options}


def type_of(option: Option) -> str:
    """Return the annotation of the values of an option."""
    if option.choices:
        kinds = ["bool"] if option.choices == ("yes", "no") else []
        return " | ".join([*kinds, "Literal[" + ", ".join(f'"{c}"' for c in option.choices) + "]", "None"])
    return {"integer": "int | None", "string": "str | None", "flag": "bool"}[option.type]


def wrapped_doc(option: Option) -> str:
    """Return the lines of an option in the docstring."""
    return textwrap.fill(f"{option.name}: {option.doc}", 116, initial_indent=" " * 8, subsequent_indent=" " * 12)


def literals() -> dict[str, tuple[str, list[str]]]:
    """Return the description and the names of each ``Literal``, by name of the type."""
    read = sorted(registry.BUILTIN_READERS)
    return {
        "TableName": ("Name of a declared table.", list(schemas.table_names())),
        "ReportName": (
            "Name of a report of nsys, DLProf or tracekit, with or without an option that has no value.",
            list(reports_with_options()),
        ),
        "RuleName": ("Name of a rule.", list_names(RULE)),
        "RecipeName": ("Name of a recipe.", list_names(RECIPE)),
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
    options = recipe_options().values()
    docs, types = "\n".join(map(wrapped_doc, options)), "\n".join(f"    {o.name}: {type_of(o)}" for o in options)
    return "".join([*parts, _RECIPE_OPTIONS.format(docs=docs, types=types)])
