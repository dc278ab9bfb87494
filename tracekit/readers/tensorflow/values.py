"""Convert the values of node attributes to JSON."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracekit.readers.common.protobuf import messages
from tracekit.readers.tensorflow import types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_LENGTH = 1 << 12
"""Maximum number of bytes of a string, and of items of a list. Longer values are replaced with their length."""


class AttributeValue(NamedTuple):
    """The decoded value of a node attribute.

    Attributes:
        kind: Name of the field of ``AttrValue`` that contains the value, or an empty string if there is no such field.
        json: The value as JSON.
        text: The value as a string if it is a string or a type, otherwise None.
        functions: Names of the functions that the value refers to.
    """

    kind: str
    json: str
    text: str | None
    functions: tuple[str, ...]


def decode_attribute_value(data: bytes) -> AttributeValue:
    """Decode an encoded ``AttrValue`` message.

    Raises:
        Damage: The message is invalid.
    """
    attribute = messages.parse(messages.load_message_class(types.FILE, "AttrValue"), data, "the value of an attribute")
    kind = attribute.WhichOneof("value")
    decoded = _convert_to_json_value(attribute, kind)
    string = decoded if kind in ("s", "type") and isinstance(decoded, str) else None
    return AttributeValue(kind or "", dump_json(decoded), string, tuple(_iterate_referenced_function_names(attribute)))


def format_tensor_value(dtype: int, shape: bytes | None) -> AttributeValue:
    """Return an attribute value with the type and the shape of a tensor, but not the content of the tensor.

    Raises:
        Damage: The shape is not a valid message.
    """
    dims = messages.parse(
        messages.load_message_class(types.FILE, "TensorShapeProto"), shape or b"", "the shape of a tensor"
    )
    return AttributeValue(
        "tensor",
        dump_json({"dtype": types.find_type_name(dtype), "shape": _convert_shape_to_json_value(dims)}),
        None,
        (),
    )


def dump_json(value: Any) -> str:
    """Convert a Python value to JSON text without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _convert_to_json_value(message: Any, kind: str | None) -> Any:
    if kind is None:
        return None
    if kind == "list":
        return _convert_list_to_json_value(message.list)
    return _CONVERTERS[kind](getattr(message, kind))


def _convert_list_to_json_value(message: Any) -> Any:
    values = [(name, items) for name in _LIST_FIELDS if (items := getattr(message, name))]
    if sum(len(items) for _, items in values) > MAX_LENGTH:
        return {"values": sum(len(items) for _, items in values)}
    return [_CONVERTERS[name](item) for name, items in values for item in items]


def _convert_to_string_or_size(string: bytes) -> Any:
    return string.decode("utf-8", "replace") if len(string) <= MAX_LENGTH else {"bytes": len(string)}


def _convert_float32_to_json_value(number: float) -> Any:
    """Return the float with the fewest digits that identify a float32 value. NaN and infinity become strings."""
    return float(str(np.float32(number))) if math.isfinite(number) else str(number)


def _convert_shape_to_json_value(shape: Any) -> Any:
    if shape.unknown_rank:
        return None
    return [d.size for d in shape.dim] if len(shape.dim) <= MAX_LENGTH else {"values": len(shape.dim)}


def _convert_tensor_to_json_value(tensor: Any) -> Any:
    return {"dtype": types.find_type_name(tensor.dtype), "shape": _convert_shape_to_json_value(tensor.tensor_shape)}


def _convert_function_to_json_value(function: Any) -> Any:
    attributes = {key: _convert_to_json_value(v, v.WhichOneof("value")) for key, v in sorted(function.attr.items())}
    return {"function": _convert_to_string_or_size(function.name), **({"attributes": attributes} if attributes else {})}


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "s": _convert_to_string_or_size,
    "i": int,
    "f": _convert_float32_to_json_value,
    "b": bool,
    "type": types.find_type_name,
    "shape": _convert_shape_to_json_value,
    "tensor": _convert_tensor_to_json_value,
    "func": _convert_function_to_json_value,
    "placeholder": lambda message: {"placeholder": _convert_to_string_or_size(message)},
}
_LIST_FIELDS = ("s", "i", "f", "b", "type", "shape", "tensor", "func")


def _iterate_referenced_function_names(message: Any) -> Iterator[str]:
    """Yield the names of the functions that an attribute value refers to, directly or in attributes of functions."""
    kind = message.WhichOneof("value")
    for function in [message.func] if kind == "func" else message.list.func if kind == "list" else ():
        yield function.name.decode("utf-8", "replace")
        for _, inner in sorted(function.attr.items()):
            yield from _iterate_referenced_function_names(inner)
