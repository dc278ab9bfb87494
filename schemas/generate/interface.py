"""The names on which programs and plug-ins rely, with what a change must keep: parameters, options, statuses, formats.

``contract`` compares the result of ``build`` with the stored one. Names, parameters with a default value, options,
choices and suffixes can be added at any time.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ForwardRef

import click
import tracekit as tk
from tracekit import cli, registry
from tracekit.cli import conditions, redact
from tracekit.system import interrupts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Members = dict[str, dict[str, str]]
"""A description of each member by name, by the name of its owner."""

ROOT = Path(__file__).parents[2]
PAGE_OF_PYTHON, PAGE_OF_PLUG_INS = ROOT / "docs" / "api.md", ROOT / "docs" / "plugins.md"
INTERFACE = ("tracekit.registry", "tracekit.errors", "tracekit.schemas")
"""Modules of the page on plug-ins, and those in them, that are promised as the Python interface is."""
KEYWORD, CHOICES, RESULT, ABSTRACT = "keyword", "one of ", "return", "abstract "
_PLAIN = (type(None), bool, int, float, str, bytes, tuple, frozenset)


def build() -> dict[str, Members]:
    """Return the promised names: those of Python, of the toolbox for plug-ins, and of the command line."""
    toolbox = list_toolbox()
    interface = [name for name in toolbox if name.startswith(INTERFACE)]
    described = {name: describe(name, has_constructor=True) for name in toolbox}
    known = {id(_import(name)): name for name in interface}
    for name in list_documented_names():
        same = known.get(id(_import(name)))
        described.setdefault(name, {name: {f"same as {same}": ""}} if same else describe(name))
    return {
        "python": _merge(described[name] for name in (*list_documented_names(), *interface)),
        "toolbox": _merge(described[name] for name in toolbox if name not in interface),
        "command_line": describe_command_line(),
        "formats": describe_formats(),
    }


def list_documented_names() -> list[str]:
    """Return the full names of the public objects: those of the package, and those on the page on Python."""
    page = re.findall(r"^::: ([\w.]+)$", PAGE_OF_PYTHON.read_text("utf-8"), re.MULTILINE)
    return sorted({*(f"tracekit.{name}" for name in tk.__all__ if name != "errors"), *page} - {"tracekit.errors"})


def list_toolbox() -> list[str]:
    """Return the full names of the objects on the page on plug-ins."""
    rows = re.findall(r"^\| `(tracekit[\w.]*)` \| ([^|]*) \|", PAGE_OF_PLUG_INS.read_text("utf-8"), re.MULTILINE)
    return sorted({f"{module}.{name}" for module, names in rows for name in re.findall(r"`(\w+)`", names)})


def describe(name: str, *, has_constructor: bool = False) -> Members:
    """Return the descriptions of a public object and of its public members."""
    value = _import(name)
    if inspect.isclass(value):
        return _describe_class(name, value, has_constructor=has_constructor)
    if inspect.isroutine(value):
        return {name: _describe_parameters(value)}
    return {name: {"value": type(value).__name__}}


def _import(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _merge(each: Iterable[Members]) -> Members:
    return dict(sorted(item for members in each for item in members.items()))


def _describe_class(name: str, owner: type, *, has_constructor: bool) -> Members:
    """Return the bases, the fields, the properties and the methods of a class, and those of its constructor."""
    bases = [b.__name__ for b in owner.__mro__[1:] if issubclass(b, (Exception, tuple, tk.Capture))]
    members: Members = {name: {f"base {b}": "" for b in bases}}
    members[name] |= {f"{ABSTRACT}{method}": "" for method in sorted(getattr(owner, "__abstractmethods__", ()))}
    if issubclass(owner, enum.Enum):
        members[name] |= {member.name: repr(member.value) for member in owner}
        return members
    fields = {f.name: f.type for f in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else {}
    fields |= {n: owner.__annotations__[n] for n in (owner._fields if issubclass(owner, tuple) else ())}
    members[name] |= {n: f"property {_read_annotation(t)}" for n, t in fields.items() if not n.startswith("_")}
    if has_constructor and not getattr(owner, "_is_protocol", False) and not issubclass(owner, BaseException):
        parameters = _describe_parameters(owner)
        members |= {f"{name}()": {n: text for n, text in parameters.items() if n != RESULT}}
    for attribute, value in _iterate_members(owner):
        if attribute in fields:
            continue
        if isinstance(value, property):
            annotation = (value.fget.__annotations__ if value.fget else {}).get(RESULT, "")
            members[name][attribute] = f"property {_read_annotation(annotation)}"
        elif inspect.isroutine(getattr(owner, attribute)):
            members[f"{name}.{attribute}"] = _describe_parameters(getattr(owner, attribute))
        elif inspect.isclass(value) or hasattr(value, "__get__"):
            members[name][attribute] = "attribute"
    return members


def _iterate_members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the public attributes that the classes of tracekit define."""
    names = {n for c in owner.__mro__ if c.__module__.startswith("tracekit") for n in vars(c) if not n.startswith("_")}
    for name in sorted(names):
        yield name, inspect.getattr_static(owner, name)


def _describe_parameters(function: Callable[..., Any]) -> dict[str, str]:
    """Return the place, type and default value of each parameter by name, and the type of the result."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return {}
    described = {}
    for place, parameter in enumerate(p for p in signature.parameters.values() if p.name not in ("self", "cls")):
        is_keyword = parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
        text = f"{KEYWORD if is_keyword else place} {_read_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {repr(parameter.default) if isinstance(parameter.default, _PLAIN) else '…'}"
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            text += " = …"
        described[parameter.name] = text
    if signature.return_annotation is not signature.empty:
        described[RESULT] = f"{RESULT} {_read_annotation(signature.return_annotation)}"
    return described


def _read_annotation(annotation: object) -> str:
    if annotation is inspect.Parameter.empty:
        return "any"
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def describe_command_line() -> Members:
    """Return the arguments and options of each command, and the exit statuses."""
    parent = click.Context(cli.cli, info_name="tracekit")
    commands = {name: cli.cli.get_command(parent, name) for name in cli.COMMANDS}
    described: Members = {"tracekit": _describe_options(cli.cli)}
    for name, command in commands.items():
        assert command is not None
        described[f"tracekit {name}"] = _describe_options(command)
    statuses = {
        "an error": 1,
        "an error of usage": click.UsageError.exit_code,
        "a condition holds": conditions.CONDITION_HOLDS,
        "private values remain": redact.PRIVATE_VALUES_REMAIN,
        "a condition cannot be tested": conditions.CONDITION_IS_UNTESTABLE,
        "interrupted": interrupts.INTERRUPTED,
    }
    return described | {"exit statuses": {name: str(status) for name, status in statuses.items()}}


def _describe_options(command: click.Command) -> dict[str, str]:
    """Return the kind of each option by its names, and of each argument."""
    described = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.hidden:
            continue
        kind = parameter.type
        text = CHOICES + ", ".join(sorted(map(str, kind.choices))) if isinstance(kind, click.Choice) else kind.name
        if isinstance(kind, click.types.FuncParamType):
            text = "value"
        if isinstance(parameter, click.Option) and parameter.is_flag:
            text = "flag"
        text += " (several)" if parameter.multiple or parameter.nargs == -1 else ""
        names = [*parameter.opts, *parameter.secondary_opts]
        described |= dict.fromkeys(names, text) if isinstance(parameter, click.Option) else {names[0].upper(): text}
    return described


def describe_formats() -> Members:
    """Return the suffixes and options of each format that is written, and the names of those that are read."""
    described: Members = {f"read {name}": {} for name in registry.BUILTIN_READERS}
    for name in registry.BUILTIN_EXPORTERS:
        exporter = registry.exporter(name)
        described[f"write {name}"] = dict.fromkeys(exporter.suffixes, "suffix") | {
            option.name: f"option {option.type}" for option in exporter.options
        }
    return described


def list_breaks(before: Members, after: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield what a program that relies on ``before`` no longer has, as a name and what happened to it."""
    for owner, members in before.items():
        if owner not in after:
            yield owner, "is missing"
            continue
        for name, old in members.items():
            new = after[owner].get(name)
            if new is None and name.startswith(ABSTRACT):
                continue
            if new is None:
                yield f"{owner}: {name}", "is missing"
            elif not is_compatible(old, new):
                yield f"{owner}: {name}", f"is {new}, but was {old}"
        for name in after[owner].keys() - members.keys():
            if _is_required(after[owner][name]):
                yield f"{owner}: {name}", "is a new parameter without a default value"
            if name.startswith(ABSTRACT):
                yield f"{owner}: {name}", "is a new method that plug-ins have to implement"


def _is_required(text: str) -> bool:
    """Return whether a description is that of a parameter without a default value."""
    return re.match(rf"(\d+|{KEYWORD}) ", text) is not None and " = " not in text


def is_compatible(old: str, new: str) -> bool:
    """Return whether what worked with the old description of a member works with the new one.

    A parameter may accept more types, and may get a default value. A result may have fewer types. An option may have
    more choices, and may be repeated.
    """
    if new in (old, f"{old} (several)"):
        return True
    if old.startswith(CHOICES) and new.startswith(CHOICES):
        return set(old.removeprefix(CHOICES).split(", ")) <= set(new.removeprefix(CHOICES).split(", "))
    (place, _, typed), (new_place, _, new_typed) = old.partition(" "), new.partition(" ")
    (kind, has_default, default), (new_kind, has_new, new_default) = typed.partition(" = "), new_typed.partition(" = ")
    if place != new_place or (has_default and (not has_new or default != new_default)):
        return False
    types, new_types = _list_types(kind), _list_types(new_kind)
    return new_types <= types if place in (RESULT, "property") else types <= new_types


def _list_types(annotation: str) -> set[str]:
    """Return the types of a union."""
    try:
        node: ast.expr = ast.parse(annotation, mode="eval").body
    except SyntaxError:
        return {annotation}
    types: set[str] = set()
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        types.add(ast.unparse(node.right))
        node = node.left
    return {*types, ast.unparse(node)}
