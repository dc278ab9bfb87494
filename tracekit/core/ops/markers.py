"""The texts of PyProf's markers: Python literals, parsed once a distinct text and never evaluated.

``{'mod': 'Tensor', 'op': 'uniform_', 'args': [{'name': '', 'type': 'tensor', 'shape': (6,), 'dtype': 'float32'}]}`` is
a call; ``{'traceMarker': ['file.py:12'], 'funcStack': '/<module>/Net::forward/relu'}`` says where it was made.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import warn

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_TEXT = 1 << 18
_BRACKETS = str.maketrans({"<": None, ">": None, "(": "[", ")": "]"})
_CALL = {
    "text": pl.String(),
    "mod": pl.String(),
    "op": pl.String(),
    "input_names": pl.String(),
    "input_shapes": pl.String(),
    "parameters": pl.String(),
    "data_type": pl.String(),
}
_PLACE = {"text": pl.String(), "path": pl.String(), "stack_trace": pl.String()}


def calls(texts: pl.Series) -> pl.DataFrame:
    """Parse markers of calls.

    Args:
        texts: Distinct texts.

    Returns:
        One row a text that could be parsed: ``text``, ``mod``, ``op``, ``input_names``, ``input_shapes``,
        ``parameters`` (JSON, null if there are none), ``data_type`` (of the last tensor).
    """
    return _parsed(texts, _CALL, _call)


def places(texts: pl.Series) -> pl.DataFrame:
    """Parse trace markers.

    Returns:
        One row a text that could be parsed: ``text``, ``path`` (the function stack, with brackets as in op names),
        ``stack_trace`` (lines, outermost first).
    """
    return _parsed(texts, _PLACE, _place)


def configs(texts: pl.Series) -> dict[str, Any]:
    """Merge what markers say of the program's settings, ``{"model_config": {...}}``; the last one wins."""
    found: dict[str, Any] = {}
    for text in texts.to_list():
        try:
            told = json.loads(text) if len(text) <= LONGEST_TEXT else {}
        except (ValueError, RecursionError):
            continue
        settings = told.get("model_config") if isinstance(told, dict) else None
        found.update(settings if isinstance(settings, dict) else {})
    return found


def as_json(value: Any) -> str:
    """Write a value as JSON without spaces; numbers with a point in 17 digits."""
    if isinstance(value, float):
        return f"{value:.17g}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{as_json(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(as_json(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _parsed(texts: pl.Series, schema: dict[str, Any], parse: Callable[[Any], dict[str, str | None]]) -> pl.DataFrame:
    rows, failed = [], 0
    for text in texts.to_list():
        try:
            rows.append({"text": text, **parse(_literal(text))})
        except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, RecursionError, MemoryError):
            failed += 1
    if failed:
        warn(f"{failed} of {len(texts)} different op markers cannot be parsed: their ranges are left out")
    return pl.DataFrame(rows, schema=schema, orient="row")


def _literal(text: str) -> Any:
    if len(text) > LONGEST_TEXT:
        raise ValueError(text[:20])
    return ast.literal_eval(text)


def _place(literal: dict[str, Any]) -> dict[str, str | None]:
    path = str(literal.get("funcStack", "")).translate(_BRACKETS)
    return {"path": path, "stack_trace": "\n".join(map(str, literal["traceMarker"]))}


def _call(literal: dict[str, Any]) -> dict[str, str | None]:
    arguments = list(literal.get("args", []))
    names, shapes, types = [], [], [""]
    parameters: list[dict[str, Any]] = []
    for argument in arguments:
        if argument.get("type") == "tensor":
            names.append(str(argument.get("name", "")))
            shapes.append([int(n) for n in argument["shape"]] or None)
            types.append(str(argument.get("dtype", "")))
            continue
        parameters.append(_parameter(argument))
        if _ends_arguments(argument.get("value")):
            break
    return {
        "mod": str(literal["mod"]),
        "op": str(literal["op"]),
        "input_names": as_json(names) if names else None,
        "input_shapes": as_json(shapes) if shapes else None,
        "parameters": as_json(parameters) if parameters else None,
        "data_type": types[-1],
    }


def _ends_arguments(value: object) -> bool:
    """Tell whether DLProf reads on after a value: not after one that JSON does not have."""
    return value is None or isinstance(value, bool)


def _parameter(argument: dict[str, Any]) -> dict[str, Any]:
    """Describe an argument that is no tensor: values with a type as they are, others as text."""
    value, kind = argument.get("value"), str(argument.get("dtype", ""))
    made = {"data_type": kind, "name": str(argument.get("name", "")), "value": None}
    if _ends_arguments(value):
        return made | {"data_type": ""}
    values = list(value) if isinstance(value, list | tuple) else [value]
    return made | {"value": values if kind else [f"{v:.17g}" if isinstance(v, float) else str(v) for v in values]}
