"""Names of the element types of TensorFlow tensors."""

from __future__ import annotations

import functools

from tracekit.readers.common.protobuf import messages

FILE = "tensorflow_graph"
"""Name of the schema file that declares the messages of graphs."""
_RENAMED_TYPES = {"float": "float32", "double": "float64", "half": "float16"}


@functools.cache
def map_type_names_by_number() -> dict[int, str]:
    """Return the names of all element types, such as ``float32`` and ``float32_ref``, by their number in TensorFlow."""
    enum_values = messages.load_message_class(FILE, "TensorProto").DESCRIPTOR.fields_by_name["dtype"].enum_type.values
    return {value.number: _format_display_name(value.name) for value in enum_values if value.number}


def find_type_name(number: int) -> str:
    """Return the name of the element type with a given number, or ``type NUMBER`` if the number is unknown."""
    return map_type_names_by_number().get(number, f"type {number}")


def _format_display_name(enum_name: str) -> str:
    base, reference, _ = enum_name.removeprefix("DT_").lower().partition("_ref")
    return _RENAMED_TYPES.get(base, base) + reference
