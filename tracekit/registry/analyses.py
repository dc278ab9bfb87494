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
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from tracekit.errors import UnknownFormatError, create_choices_hint
from tracekit.schemas import Column, TableSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Value: TypeAlias = bool | int | str | tuple[str, ...] | None
Scope: TypeAlias = Literal["trace", "set", "ncu"]
MAX_INTEGER = (1 << 63) - 1
_MAX_DIGITS = 19
_FLAGS = {"yes": True, "no": False}
BUILTIN_MODULES: Mapping[str, tuple[str, ...]] = {"figure": ("tracekit.core.figures", "tracekit.plan.stacks")}
"""The modules whose attribute ``ANALYSES`` lists the declarations of a kind of analysis, by kind."""


class Option(NamedTuple):
    """An option of an analysis or exporter.

    Attributes:
        name: Name of the option.
        doc: Description of the option.
        type: Type of the values. As text, a flag is written without a value or with the value yes or no, and a list as
            strings separated by commas.
        default: Value if the option is not set.
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
        """Return a value of the option, after checking that it is allowed.

        Raises:
            UnknownFormatError: The value is not allowed.
        """
        if self.type == "list" and isinstance(value, tuple):
            return tuple(str(self._replace(type="string").check(item, owner)) for item in value)
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


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """The declaration of an analysis.

    Attributes:
        kind: Kind of the analysis: ``report``, ``rule``, ``recipe`` or ``figure`` (the data that a figure or page
            shows). Names are unique within a kind.
        name: Name of the analysis.
        doc: Description in one line.
        compute: Function that computes the result, or its location ``MODULE:NAME``, from which it is imported when it
            is first needed. The kind of the analysis determines its argument.
        results: The tables of the result, the main table first. Their columns may be of the type ``ResultColumn``.
        options: The options.
        tables: Tables from which the result is computed.
        required_tables: Tables without which the result has no rows if the capture has kernels.
        scope: What is analyzed: one trace, the traces of a set, or results of Nsight Compute.
        input: What ``compute`` reads: the tables of a trace, its roll-up, or its roll-up as in DLProf.
        origin: Tool that defines the result and its printed form.
        old_names: Further names of the analysis.
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
    input: Literal["tables", "rollup", "dlprof"] = "tables"
    origin: Literal["tracekit", "nsys", "dlprof"] = "tracekit"
    old_names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The kind and the name, for messages."""
        return f"{self.kind} {self.name!r}"

    def load_compute_function(self) -> Callable[..., Any]:
        """Return the function that computes the result, and import it if necessary."""
        if callable(self.compute):
            return self.compute
        module, _, name = self.compute.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function

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
    resolved = {option.name: checked.get(option.name, option.default) for option in options}
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
        hint = create_choices_hint("options", [o.name for o in options], name) if options else "it has no options"
        raise UnknownFormatError(f"{owner} has no option {name!r}", hint=hint)
    return option


def list_analyses(kind: str) -> Mapping[str, Analysis]:
    """Return all analyses of a kind by name. Built-in ones come before those of plug-ins."""
    return _load_built_in(kind) | {a.name: a for a in _load_plugins() if a.kind == kind}


def find_analysis(kind: str, name: str) -> Analysis | None:
    """Return the analysis of a kind with the given name or old name, or None."""
    declared = _load_built_in(kind)
    return declared.get(name) or _map_old_names(kind).get(name) or list_analyses(kind).get(name)


@functools.cache
def _load_built_in(kind: str) -> dict[str, Analysis]:
    modules = map(import_module, BUILTIN_MODULES.get(kind, ()))
    return {declared.name: declared for module in modules for declared in module.ANALYSES}


@functools.cache
def _map_old_names(kind: str) -> dict[str, Analysis]:
    return {old: declared for declared in _load_built_in(kind).values() for old in declared.old_names}


@functools.cache
def _load_plugins() -> list[Analysis]:
    """Return the analyses of plug-ins. One with the kind and the name of another analysis is skipped with a warning."""
    from tracekit import registry

    known = {(a.kind, a.name): a for kind in BUILTIN_MODULES for a in _load_built_in(kind).values()}
    return [a for key, a in registry.add_plugins(Analysis, known, "tracekit.analyses").items() if key not in known]
