"""Parse the names of PyProf's markers, which are Python literals. Names are parsed but never evaluated as code.

``{'mod': 'Tensor', 'op': 'uniform_', 'args': [{'name': '', 'type': 'tensor', 'shape': (6,), 'dtype': 'float32'}]}``
describes a call. ``{'traceMarker': ['file.py:12'], 'funcStack': '/<module>/Net::forward/relu'}`` describes the location
of the call in the program.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.errors import warn

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_TEXT_LENGTH = 1 << 18
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
_LOCATION = {"text": pl.String(), "path": pl.String(), "stack_trace": pl.String()}


def parse_op_markers(texts: pl.Series) -> pl.DataFrame:
    """Parse the op markers of PyProf.

    Args:
        texts: Distinct names of markers.

    Returns:
        One row per name that could be parsed: ``text``, ``mod``, ``op``, ``input_names``, ``input_shapes``,
        ``parameters`` (JSON, or null if there are none), ``data_type`` (data type of the last tensor).
    """
    return _parse_markers(texts, _CALL, _parse_call)


def parse_trace_markers(texts: pl.Series) -> pl.DataFrame:
    """Parse the trace markers of PyProf.

    Args:
        texts: Distinct names of markers.

    Returns:
        One row per name that could be parsed: ``text``, ``path`` (the function stack, with square brackets instead of
        parentheses and without angle brackets), ``stack_trace`` (one line per function, outermost first).
    """
    return _parse_markers(texts, _LOCATION, _parse_location)


def merge_program_settings(texts: pl.Series) -> dict[str, Any]:
    """Merge the program settings of markers such as ``{"model_config": {...}}``.

    If several markers have the same setting, the last value is used.
    """
    settings: dict[str, Any] = {}
    for text in texts.to_list():
        try:
            marker = json.loads(text) if len(text) <= MAX_TEXT_LENGTH else {}
        except (ValueError, RecursionError):
            continue
        config = marker.get("model_config") if isinstance(marker, dict) else None
        settings.update(config if isinstance(config, dict) else {})
    return settings


def to_json(value: Any) -> str:
    """Serialize a value as JSON without spaces. Keys are sorted, and floats have 17 significant digits."""
    if isinstance(value, float):
        return f"{value:.17g}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{to_json(value[k])}" for k in sorted(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(to_json(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)


def _parse_markers(
    texts: pl.Series, schema: dict[str, Any], parse: Callable[[Any], dict[str, str | None]]
) -> pl.DataFrame:
    """Parse the names of markers into one row each, and warn about the names that cannot be parsed."""
    rows, failed = [], 0
    for text in texts.to_list():
        try:
            rows.append({"text": text, **parse(_parse_literal(text))})
        except (ValueError, SyntaxError, TypeError, KeyError, AttributeError, RecursionError, MemoryError):
            failed += 1
    if failed:
        warn(f"{failed} of {len(texts)} distinct PyProf markers cannot be parsed, so their ranges are ignored")
    return pl.DataFrame(rows, schema=schema, orient="row")


def _parse_literal(text: str) -> Any:
    """Return the value of a Python literal.

    Raises:
        ValueError: The literal is too long.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise ValueError(f"the literal is longer than {MAX_TEXT_LENGTH} characters")
    return ast.literal_eval(text)


def _parse_location(literal: dict[str, Any]) -> dict[str, str | None]:
    """Return the path and stack trace of a trace marker."""
    path = str(literal.get("funcStack", "")).translate(_BRACKETS)
    return {"path": path, "stack_trace": "\n".join(map(str, literal["traceMarker"]))}


def _parse_call(literal: dict[str, Any]) -> dict[str, str | None]:
    """Return the module, op, inputs and parameters of the call that an op marker of PyProf describes.

    Args:
        literal: The dict that was parsed from the name of the marker.

    Returns:
        The values of the columns ``_CALL``, keyed by column.
    """
    arguments = list(literal.get("args", []))
    names, shapes, types = [], [], [""]
    parameters: list[dict[str, Any]] = []
    for argument in arguments:
        if argument.get("type") == "tensor":
            names.append(str(argument.get("name", "")))
            shapes.append([int(n) for n in argument["shape"]] or None)
            types.append(str(argument.get("dtype", "")))
            continue
        parameters.append(_convert_argument_to_json_object(argument))
        if _is_last_argument(argument.get("value")):
            break
    return {
        "mod": str(literal["mod"]),
        "op": str(literal["op"]),
        "input_names": to_json(names) if names else None,
        "input_shapes": to_json(shapes) if shapes else None,
        "parameters": to_json(parameters) if parameters else None,
        "data_type": types[-1],
    }


def _is_last_argument(value: object) -> bool:
    """Return whether the arguments after a value are ignored. As in DLProf, None, True and False end the arguments."""
    return value is None or isinstance(value, bool)


def _convert_argument_to_json_object(argument: dict[str, Any]) -> dict[str, Any]:
    """Convert an argument that is not a tensor to a JSON object. A value without a data type becomes a string."""
    value, data_type = argument.get("value"), str(argument.get("dtype", ""))
    parameter = {"data_type": data_type, "name": str(argument.get("name", "")), "value": None}
    if _is_last_argument(value):
        return parameter | {"data_type": ""}
    values = list(value) if isinstance(value, list | tuple) else [value]
    if not data_type:
        values = [f"{v:.17g}" if isinstance(v, float) else str(v) for v in values]
    return parameter | {"value": values}
