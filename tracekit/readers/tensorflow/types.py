"""Names of TensorFlow's element types."""

from __future__ import annotations

import functools

from tracekit.readers.common.protobuf import messages

FILE = "tensorflow_graph"
_OTHER_NAMES = {"float": "float32", "double": "float64", "half": "float16"}


@functools.cache
def names() -> dict[int, str]:
    """Names of the types by number: ``float32``, ``int64``, ``float32_ref``."""
    declared = messages.message(FILE, "TensorProto").DESCRIPTOR.fields_by_name["dtype"].enum_type.values
    return {value.number: _plain(value.name) for value in declared if value.number}


def name(number: int) -> str:
    """Return the name of a type; its number, if it is not known."""
    return names().get(number, f"type {number}")


def _plain(declared: str) -> str:
    base, reference, _ = declared.removeprefix("DT_").lower().partition("_ref")
    return _OTHER_NAMES.get(base, base) + reference
