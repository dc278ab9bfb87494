"""The JSON Schema of what ``tracekit why --format json`` prints, derived from the classes of the answer.

It is the content of ``schemas/why.json``.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.core.check import result as check
from tracekit.core.diagnosis import answer, causes, ledger, what_if

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE = schemas.FOLDER / "why.json"
WHAT_IF_FILE = schemas.FOLDER / "what_if.json"
_TYPES: dict[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
_OPTIONAL = ("rank", "ranks")
_CLASSES = (
    *(answer.StepFigures, answer.LedgerPart, answer.Saving, answer.Place, answer.Evidence, answer.Rows),
    *(answer.CauseOfTime, answer.ColdSteps, answer.FirstCall, answer.Why),
)
CLASSES_OF_WHAT_IF = (answer.StepFigures, answer.LedgerPart, answer.Saving, what_if.EditMatch, what_if.WhatIf)
_RANGE_OF_PART = {
    "type": "object",
    "properties": {"range": {"type": ["string", "null"]}, "total_ns": {"type": "integer", "minimum": 0}},
    "required": ["range", "total_ns"],
    "additionalProperties": False,
}


def build(classes: tuple[type, ...] = _CLASSES, command: str = "why") -> dict[str, Any]:
    """Return the JSON Schema of the envelope of a command. The last class is that of the answer."""
    definitions = {cls.__name__: build_class(cls) for cls in classes}
    texts = {"type": "array", "items": {"type": "string"}}
    properties = {
        "schema": {"const": answer.SCHEMA, "description": "Version of the envelope."},
        "tool": _object({"name": {"const": "tracekit"}, "version": {"type": "string"}}),
        "input": texts | {"description": "Paths of the captures."},
        "status": _build_type(answer.Status) | {"description": "The status of the answer, as in data."},
        "warnings": texts | {"description": "Warnings about the captures."},
        "data": {"$ref": f"#/$defs/{classes[-1].__name__}"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"tracekit {command}",
        "description": f"What tracekit {command} --format json prints. "
        "Shares and savings are fractions, times are in ns.",
        **_object(properties),
        "$defs": definitions,
    }


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the schema of an object without other properties."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def build_class(cls: type) -> dict[str, Any]:
    """Return the schema of the object to which ``to_dict`` turns a dataclass."""
    hints = typing.get_type_hints(cls)
    descriptions = read_descriptions(cls)
    properties = {}
    for declared in dataclasses.fields(cls):
        schema = _build_type(hints[declared.name])
        if schema.get("type") == "integer" and not declared.name.endswith("_id"):
            schema["minimum"] = 0
        if declared.name in descriptions:
            schema["description"] = descriptions[declared.name]
        properties[declared.name] = schema
    if cls is answer.Saving:
        properties = {name: schema | {"minimum": 0, "maximum": 1} for name, schema in properties.items()}
    if cls is answer.LedgerPart:
        properties["part"]["enum"] = list(ledger.PARTS)
        properties["class"] = properties.pop("group") | {"enum": list(dict.fromkeys(ledger.PARTS.values()))}
        properties["places"]["items"] = _RANGE_OF_PART
    if cls is answer.CauseOfTime:
        properties["cause"]["examples"] = list(causes.NAMES)
    if cls is what_if.EditMatch:
        del properties["number"], properties["hint"]
    if cls is check.Check:
        meaning = "Whether the check is passed, failed or untestable. It is passed only if everything was tested."
        properties = {"outcome": _build_type(check.Outcome) | {"description": meaning}, **properties}
    return _object(properties, _OPTIONAL if cls in (answer.Why, what_if.WhatIf) else ())


def _build_type(hint: Any) -> dict[str, Any]:
    """Return the schema of the values of a type."""
    arguments = typing.get_args(hint)
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if typing.get_origin(hint) is typing.Literal:
        return {"enum": list(arguments)}
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _build_type(arguments[0])}
    if isinstance(hint, types.UnionType):
        variants = [_build_type(a) for a in arguments]
        names = [v["type"] for v in variants if set(v) == {"type"}]
        return {"type": names} if len(names) == len(variants) else {"anyOf": variants}
    if typing.get_origin(hint) is Mapping:
        values = _build_type(arguments[1])
        return {"type": "object", **({"additionalProperties": values} if values else {})}
    return {"$ref": f"#/$defs/{hint.__name__}"} if dataclasses.is_dataclass(hint) else {}


def read_descriptions(cls: type) -> dict[str, str]:
    """Return the descriptions of the attributes in the docstring of a class."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).replace("``", "`").replace("None", "null") for name, text in entries}


def text() -> str:
    """Return the content of the file for ``why``."""
    return json.dumps(build(), indent=2, ensure_ascii=False) + "\n"


def what_if_text() -> str:
    """Return the content of the file for ``what-if``."""
    return json.dumps(build(CLASSES_OF_WHAT_IF, "what-if"), indent=2, ensure_ascii=False) + "\n"


def read_file() -> dict[str, Any]:
    """Return the JSON Schema in the file."""
    schema: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return schema


def validate(envelope: Any, file: Path = FILE) -> list[str]:
    """Return what in an envelope contradicts the JSON Schema in a file, after it was written as JSON."""
    schema: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return find_errors(json.loads(json.dumps(envelope)), schema, schema["$defs"])


def find_errors(value: Any, schema: dict[str, Any], definitions: dict[str, Any], path: str = "$") -> list[str]:
    """Return what in a value contradicts a schema, for the keywords that this module uses."""
    if "$ref" in schema:
        return find_errors(value, definitions[schema["$ref"].rpartition("/")[2]], definitions, path)
    if "anyOf" in schema:
        listed = [find_errors(value, variant, definitions, path) for variant in schema["anyOf"]]
        return [] if [] in listed else [error for errors in listed for error in errors]
    errors = [f"{path}: {value!r} {problem}" for problem in _check_value(value, schema)]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        errors += [f"{path}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        errors += [f"{path}: {name} is unknown" for name in value if name not in properties]
        for name in value.keys() & properties.keys():
            errors += find_errors(value[name], properties[name], definitions, f"{path}.{name}")
    if isinstance(value, list):
        for i, item in enumerate(value):
            errors += find_errors(item, schema.get("items", {}), definitions, f"{path}[{i}]")
    return errors


def _check_value(value: Any, schema: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a value, apart from the values in it."""
    names = schema.get("type", [])
    listed = [names] if isinstance(names, str) else names
    if listed and not any(_has_type(value, name) for name in listed):
        yield f"is not of type {names}"
    elif "const" in schema and value != schema["const"]:
        yield f"is not {schema['const']!r}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"is not one of {schema['enum']}"
    elif isinstance(value, (int, float)) and value < schema.get("minimum", value):
        yield f"is less than {schema['minimum']}"
    elif isinstance(value, (int, float)) and value > schema.get("maximum", value):
        yield f"is more than {schema['maximum']}"


def _has_type(value: Any, name: str) -> bool:
    if name in ("integer", "number"):
        return isinstance(value, int if name == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "null": types.NoneType, "array": list, "object": dict}[name])
