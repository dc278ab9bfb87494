"""The declarations of analyses, such as reports, rules and recipes: their options, their results and what they need.

An analysis is declared once. The command line, the Python interface, the documentation and ``tracekit schema`` use the
declaration. Built-in analyses are declared in ``schemas/analyses``, so that their names, options and columns can be
listed without importing the code that computes them. Plug-ins add analyses through the entry point group
``tracekit.analyses``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, cast

from tracekit.errors import UnknownFormatError, create_choices_hint
from tracekit.schemas import Column, TableSchema, load_declared_analyses, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Value: TypeAlias = bool | int | str | tuple[str, ...] | None
Scope: TypeAlias = Literal["trace", "set", "ncu"]
MAX_INTEGER = (1 << 63) - 1
_MAX_DIGITS = 19
_FLAGS = {"yes": True, "no": False}
REPORT, RULE, RECIPE, METHOD, FIGURE = "report", "rule", "recipe", "method", "figure"
KINDS = (REPORT, RULE, RECIPE, METHOD, FIGURE)


class Option(NamedTuple):
    """An option of an analysis or exporter.

    Attributes:
        name: Name of the option.
        doc: Description of the option.
        type: Type of the values. As text, a flag is written without a value or with the value yes or no, and a list as
            strings separated by commas.
        default: Value if the option is not set. It is False for a flag.
        minimum: Smallest allowed integer.
        maximum: Largest allowed integer.
        choices: Allowed strings, also those of a list. Empty if all strings are allowed.
        is_required: Whether the option has to be set.
        excludes: Names of flags that must not be set together with this one.
        tables: Tables that are needed in addition if the option is set.
    """

    name: str
    doc: str
    type: Literal["flag", "integer", "string", "list"] = "string"
    default: Value = None
    minimum: int = 0
    maximum: int = MAX_INTEGER
    choices: tuple[str, ...] = ()
    is_required: bool = False
    excludes: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    @property
    def allowed_values_text(self) -> str:
        """The allowed values as text, such as "an integer from 0 to 100"."""
        if self.type == "flag":
            return "yes or no (in Python, True or False)"
        if self.type == "integer":
            upper = f"from {self.minimum} to {self.maximum}"
            return f"an integer {f'of at least {self.minimum}' if self.maximum == MAX_INTEGER else upper}"
        if self.type == "list":
            return f"a list of {', '.join(self.choices) or 'strings'}"
        return f"one of {', '.join(self.choices)}" if self.choices else "a string"

    def parse(self, text: str, owner: str) -> Value:
        """Parse the value of the option.

        Args:
            text: The value as text.
            owner: What has the option, for error messages, such as ``report 'um_sum'``.

        Raises:
            UnknownFormatError: The value is not allowed.
        """
        if self.type == "flag":
            return self.check(_FLAGS.get(text, text), owner)
        if self.type == "list":
            return self.check(tuple(item.strip() for item in text.split(",")), owner)
        digits = text.removeprefix("-")
        is_integer = digits.isascii() and digits.isdecimal() and len(digits) <= _MAX_DIGITS
        return self.check(int(text) if self.type == "integer" and is_integer else text, owner)

    def check(self, value: Value, owner: str) -> Value:
        """Return a value of the option, after checking that it is allowed. True and False also stand for yes and no.

        Raises:
            UnknownFormatError: The value is not allowed.
        """
        if self.type == "list" and isinstance(value, tuple):
            return tuple(str(self._replace(type="string").check(item, owner)) for item in value)
        if isinstance(value, bool) and self.choices == ("yes", "no"):
            return "yes" if value else "no"
        if not self._is_allowed(value):
            message = f"{owner}: {value!r} is not a valid value of the option {self.name!r}"
            raise UnknownFormatError(message, hint=f"set {self.name} to {self.allowed_values_text}")
        return value

    def _is_allowed(self, value: Value) -> bool:
        if self.type == "flag":
            return isinstance(value, bool)
        if self.type == "integer":
            return isinstance(value, int) and not isinstance(value, bool) and self.minimum <= value <= self.maximum
        return self.type == "string" and isinstance(value, str) and (not self.choices or value in self.choices)


class RowReference(NamedTuple):
    """The rows of a table that a row of a result is about.

    Attributes:
        table: Name of the table, whose key is a single column.
        on: Columns of the table, each with the column of the computed rows that has the same values.
    """

    table: str
    on: Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class ResultColumn(Column):
    """The declaration of a column of a result.

    Attributes:
        field: Name of the column among the computed rows, before they are printed. Empty if it has the same name.
        style: Printed form of the values. Empty for the form that the type and the unit imply.
        is_key: Whether the column is the point of the result. On a terminal, such columns are omitted last.
        is_machine_readable: Whether only programs read the column, which is then not printed on a terminal.
    """

    field: str = ""
    style: str = ""
    is_key: bool = False
    is_machine_readable: bool = False

    @property
    def row_name(self) -> str:
        """Name of the column among the computed rows."""
        return self.field or self.name


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """The declaration of an analysis.

    Attributes:
        kind: Kind of the analysis: ``report``, ``rule``, ``recipe``, ``method`` (of traces and sets) or ``figure`` (the
            data that a figure or page shows). Names are unique within a kind.
        name: Name of the analysis.
        doc: Description in one line.
        compute: Function that computes the result, or its location ``MODULE:NAME``, from which it is imported when it
            is first needed. The kind of the analysis determines its argument.
        results: The tables of the result, the main table first. Their columns are of the class ``ResultColumn``.
        options: The options.
        tables: Tables from which the result is computed.
        required_tables: Tables without which the result has no rows if the capture has kernels.
        scope: What is analyzed: one trace, the traces of a set, or results of Nsight Compute.
        input: What ``compute`` reads: the tables of a trace, also with the columns of correlation, its roll-up, or its
            roll-up and the columns that ``why`` reads.
        compares_ranks: Whether the result of a capture depends on the other ranks, if it belongs to a set of ranks.
        origin: Tool that defines the result and its printed form.
        old_names: Further names of the analysis.
        recording: Why there is no result without what it needs beyond its tables, and after a colon how to record it,
            as a clause for hints, or "".
        recorded_column: Name of the column that only has values if what ``recording`` describes was recorded, or ""
            if there are no rows without it.
        evidence: The recorded rows that a row of the main table is about. The first reference with such rows counts.
    """

    kind: str
    name: str
    doc: str
    compute: Callable[..., Any] | str
    results: tuple[TableSchema, ...] = ()
    options: tuple[Option, ...] = ()
    tables: tuple[str, ...] = ()
    required_tables: tuple[str, ...] = ()
    scope: Scope = "trace"
    input: Literal["tables", "correlated", "rollup", "diagnosis"] = "tables"
    compares_ranks: bool = False
    origin: Literal["tracekit", "nsys", "dlprof"] = "tracekit"
    old_names: tuple[str, ...] = ()
    recording: str = ""
    recorded_column: str = ""
    evidence: tuple[RowReference, ...] = ()

    @property
    def label(self) -> str:
        """The kind and the name, for messages."""
        return f"{self.kind} {self.name!r}"

    @property
    def recording_hint(self) -> str:
        """How to record what the result needs beyond its tables: the part of ``recording`` after the colon."""
        return self.recording.partition(": ")[2]

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        """The columns of the main table of the result."""
        return cast("tuple[ResultColumn, ...]", self.results[0].columns)

    def has_option(self, name: str) -> bool:
        """Return whether the analysis has an option with the given name."""
        return any(option.name == name for option in self.options)

    def list_required_tables(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the tables without which there are no rows if the capture has kernels, given values of options."""
        of_options = (table for option in self.options if values.get(option.name) for table in option.tables)
        return tuple(dict.fromkeys((*self.required_tables, *of_options)))

    def load_compute_function(self) -> Callable[..., Any]:
        """Return the function that computes the result, and import it if necessary."""
        if callable(self.compute):
            return self.compute
        module, _, name = self.compute.partition(":")
        loaded: Any = import_module(module)
        for part in name.split("."):
            loaded = getattr(loaded, part)
        return cast("Callable[..., Any]", loaded)

    def parse_options(self, texts: Iterable[str]) -> dict[str, Value]:
        """Parse the texts of options, as ``parse_options`` does."""
        return parse_options(self.label, self.options, texts)

    def resolve_options(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Check the values of options, and return the values of all options, as ``resolve_options`` does."""
        return resolve_options(self.label, self.options, values)


def parse_options(owner: str, options: Sequence[Option], texts: Iterable[str]) -> dict[str, Value]:
    """Parse texts such as ``base`` and ``rows=5``, and return the values of these options by name.

    Args:
        owner: What has the options, for error messages, such as ``report 'um_sum'``.
        options: The options.
        texts: The texts: the name of a flag, or the name of any other option with its value.

    Raises:
        UnknownFormatError: An option does not exist, or a value is not allowed.
    """
    values: dict[str, Value] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        option = _find_option(owner, options, name)
        is_flag = option.type == "flag" and not equals
        values[name] = True if is_flag else option.parse(value, owner)
    return values


def resolve_options(owner: str, options: Sequence[Option], values: Mapping[str, Value]) -> dict[str, Value]:
    """Check the values of options, and return the values of all options by name, with defaults for the others.

    Raises:
        UnknownFormatError: An option does not exist, a value is not allowed, a required option is missing, or two
            options exclude each other.
    """
    checked: dict[str, Value] = {}
    for name, value in values.items():
        option = _find_option(owner, options, name)
        checked[name] = option.parse(value, owner) if isinstance(value, str) else option.check(value, owner)
    resolved = {o.name: checked.get(o.name, bool(o.default) if o.type == "flag" else o.default) for o in options}
    for option in options:
        if option.is_required and resolved[option.name] is None:
            raise UnknownFormatError(f"{owner} requires the option {option.name!r}", hint=option.doc)
        other = next((e for e in option.excludes if resolved[option.name] and resolved.get(e)), None)
        if other is not None:
            message = f"{owner}: options {option.name!r} and {other!r} are mutually exclusive"
            raise UnknownFormatError(message, hint=f"use either {option.name} or {other}")
    return resolved


def _find_option(owner: str, options: Sequence[Option], name: str) -> Option:
    option = next((o for o in options if o.name == name), None)
    if option is None:
        hint = f"the {owner.partition(' ')[0]} has no options"
        if options:
            hint = create_choices_hint("options", [o.name for o in options], name)
        raise UnknownFormatError(f"{owner} has no option {name!r}", hint=hint)
    return option


def parse_name(
    text: str, options: Mapping[str, Value] | None = None, kinds: Sequence[str] = (RULE, REPORT)
) -> tuple[Analysis, dict[str, Value]]:
    """Return the analysis that a text names, and the values of the options that are set.

    Args:
        text: Name or old name, optionally followed by options after colons, as in nsys: ``cuda_gpu_kern_sum:base``.
        options: Values of further options by name.
        kinds: Kinds of analyses that the text may name.

    Raises:
        UnknownFormatError: The analysis or an option in the text does not exist, or the value of such an option is not
            allowed.
    """
    name, *texts = text.split(":")
    analysis = get_analysis(name, *kinds)
    return analysis, {**analysis.parse_options(texts), **(options or {})}


def get_analysis(name: str, *kinds: str) -> Analysis:
    """Return the analysis of one of the given kinds with the given name or old name.

    Raises:
        UnknownFormatError: There is no such analysis.
    """
    for find in (_find_built_in, find_analysis):  # searching for plug-ins takes long
        for analysis in filter(None, (find(kind, name) for kind in kinds)):
            return analysis
    noun = REPORT if REPORT in kinds else kinds[0]
    hint = create_choices_hint(f"{noun}s", list_names(noun), name)
    raise UnknownFormatError(f"unknown {noun} {name!r}", hint=hint)


def list_analyses(kind: str) -> Mapping[str, Analysis]:
    """Return all analyses of a kind by name. Built-in ones come before those of plug-ins."""
    return {**list_built_in_analyses(kind), **_load_plugins(kind)}


def list_built_in_analyses(kind: str) -> dict[str, Analysis]:
    """Return the built-in analyses of a kind by name, which is faster than searching for plug-ins."""
    return {name: _build_declared(kind, name) for name in _load_declarations(kind)}


def list_names(kind: str) -> list[str]:
    """Return the names of all analyses of a kind."""
    return [*_load_declarations(kind), *_load_plugins(kind)]


def find_analysis(kind: str, name: str) -> Analysis | None:
    """Return the analysis of a kind with the given name or old name, or None."""
    return _find_built_in(kind, name) or _load_plugins(kind).get(name)


def _find_built_in(kind: str, name: str) -> Analysis | None:
    current = name if name in _load_declarations(kind) else _map_old_names(kind).get(name)
    return None if current is None else _build_declared(kind, current)


class _Declared(NamedTuple):
    """The declaration of an analysis in a file of ``schemas/analyses``, and the content of this file."""

    raw: Mapping[str, Any]
    file: Mapping[str, Any]


@functools.cache
def _load_declarations(kind: str) -> Mapping[str, _Declared]:
    """Return the declarations of built-in analyses by name, which ``_build_declared`` converts to ``Analysis``."""
    files = [file for file in load_declared_analyses().values() if file["kind"] == kind]
    return {name: _Declared(raw, file) for file in files for name, raw in file["analyses"].items()}


@functools.cache
def _map_old_names(kind: str) -> Mapping[str, str]:
    return {old: name for name, each in _load_declarations(kind).items() for old in each.raw.get("old_names", ())}


@functools.cache
def _build_declared(kind: str, name: str) -> Analysis:
    declared = _load_declarations(kind)[name]
    raw = {**declared.file.get("defaults", {}), **_convert_lists(declared.raw)}
    options = _merge_with_shared(declared.file, "options")
    if "recording" in raw:
        raw["recording"] = declared.file["recordings"][raw["recording"]]
    columns, rows_of = raw.pop("columns", ()), raw.pop("rows_of", "")
    results = raw.pop("results", ({"name": name, "doc": raw["doc"], "columns": columns},))
    return Analysis(
        kind,
        name,
        options=tuple(Option(name, **_convert_lists(options[name])) for name in raw.pop("options", ())),
        evidence=tuple(RowReference(**reference) for reference in raw.pop("evidence", ())),
        results=_find_results(rows_of) if rows_of else tuple(_build_result(each, declared.file) for each in results),
        **_convert_lists(raw),
    )


def _find_results(location: str) -> tuple[TableSchema, ...]:
    """Return a declared table, or the result of another analysis, such as ``rule.gpu_idle_causes``."""
    kind, _, name = location.rpartition(".")
    return _build_declared(kind, name).results if kind else (table(name),)


def _build_result(raw: Mapping[str, Any], file: Mapping[str, Any]) -> TableSchema:
    """Return a table of a result, given its declaration and the file that declares its columns and groups of them."""
    groups, columns_by_name = _merge_with_shared(file, "groups"), _merge_with_shared(file, "columns")
    keys = raw.get("key_columns", ())
    names = [column for name in raw["columns"] for column in groups.get(name, (name,))]
    declared = [{"is_key": columns_by_name[name]["name"] in keys, **columns_by_name[name]} for name in names]
    columns = tuple(ResultColumn(nullable=True, **column) for column in declared)
    return TableSchema(raw["name"], raw["doc"], tuple(raw.get("key", ())), columns)


def _merge_with_shared(file: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the options, groups or columns of a file and of the file whose declarations it shares."""
    shared = load_declared_analyses().get(file.get("shares", ""), {})
    return {**shared.get(section, {}), **file.get(section, {})}


def _convert_lists(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping whose lists are replaced with tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}


@functools.cache
def _load_plugins(kind: str) -> Mapping[str, Analysis]:
    """Return the analyses of plug-ins by name. One with the name of another analysis is skipped with a warning."""
    built_in = _load_declarations(kind)
    plugins = {name: analysis for (other, name), analysis in _load_all_plugins().items() if other == kind}
    return {name: analysis for name, analysis in plugins.items() if name not in built_in}


@functools.cache
def _load_all_plugins() -> Mapping[tuple[str, str], Analysis]:
    from tracekit import registry

    known = {(kind, name): _build_declared(kind, name) for kind in KINDS for name in _load_declarations(kind)}
    analyses = registry.add_plugins(Analysis, known, "tracekit.analyses")
    return {key: analysis for key, analysis in analyses.items() if key not in known}
