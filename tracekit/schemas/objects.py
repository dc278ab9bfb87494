"""Convert frozen dataclasses to JSON values and back, so that what is read has the types of what was written."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from tracekit.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    Object = TypeVar("Object")


def to_json(value: Any) -> Any:
    """Return a value as JSON values: dataclasses and mappings as dictionaries, and tuples as lists.

    A dataclass with a method ``to_dict`` is converted by this method.
    """
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return fields_to_json(value)
    if isinstance(value, Mapping):
        return {name: to_json(each) for name, each in value.items()}
    return [to_json(each) for each in value] if isinstance(value, (tuple, list)) else value


def fields_to_json(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values, by name."""
    return {each.name: to_json(getattr(value, each.name)) for each in dataclasses.fields(value)}


def build_object(cls: type[Object], values: Any, **others: Any) -> Object:
    """Return the object of a dataclass, given its fields as JSON values.

    Classes with a function ``from_dict`` are built by this function, where they are the type of a field.

    Args:
        cls: The dataclass.
        values: The JSON values by name. Fields with a default may be missing.
        others: Values of further fields, which are not JSON values.

    Raises:
        SchemaError: A field is missing or unknown, or its value has another type.
    """
    if not isinstance(values, Mapping):
        raise SchemaError(f"an object of the kind {cls.__name__} is a {type(values).__name__}")
    converters = _list_converters(cast("Any", cls))
    required = _list_required_fields(cls)
    if unknown := next((name for name in values if name not in converters), None):
        raise SchemaError(f"an object of the kind {cls.__name__} has no field {unknown!r}")
    if missing := next((name for name in required if name not in values and name not in others), None):
        raise SchemaError(f"an object of the kind {cls.__name__} lacks the field {missing!r}")
    return cls(**{name: converters[name](value) for name, value in values.items() if name not in others}, **others)


@functools.cache
def _list_converters(cls: type) -> dict[str, Callable[[Any], Any]]:
    """Return a function per field of a dataclass, which converts the JSON value of the field."""
    hints = typing.get_type_hints(cls)
    return {each.name: functools.partial(_convert, hints[each.name], each.name) for each in _fields(cls)}


def _list_required_fields(cls: type) -> list[str]:
    missing = dataclasses.MISSING
    return [each.name for each in _fields(cls) if each.default is missing and each.default_factory is missing]


def _fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(cast("Any", cls))


def _convert(hint: Any, name: str, value: Any) -> Any:
    """Return a JSON value as the type of a field.

    Raises:
        SchemaError: The value has another type.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return tuple(value) if isinstance(value, list) else value
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _convert(next(a for a in arguments if a is not types.NoneType), name, value)
    if origin is not None:
        return _convert_container(origin, arguments, name, value)
    if dataclasses.is_dataclass(hint):
        cls = cast("Any", hint)
        return cls.from_dict(value) if hasattr(cls, "from_dict") else build_object(cls, value)
    is_whole = hint is float and type(value) is int
    _check(is_whole or type(value) is hint, name, value, f"of the type {hint.__name__}")
    return float(value) if is_whole else value


def _convert_container(origin: Any, arguments: tuple[Any, ...], name: str, value: Any) -> Any:
    """Return a JSON value as a tuple, a mapping or one of several literals."""
    if origin is Literal:
        _check(value in arguments, name, value, " or ".join(map(repr, arguments)))
        return value
    if origin is tuple:
        _check(isinstance(value, list), name, value, "a list")
        return tuple(_convert(arguments[0], name, each) for each in value)
    _check(isinstance(value, dict), name, value, "an object")
    return {key: _convert(arguments[1], name, each) for key, each in value.items()}


def _check(is_valid: bool, name: str, value: Any, expected: str) -> None:  # noqa: FBT001 - the condition of an assertion
    if not is_valid:
        raise SchemaError(f"the field {name!r} is a {type(value).__name__}, but it must be {expected}")
