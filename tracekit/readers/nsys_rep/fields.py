"""Numbers of the fields of a report's messages, by the names that ``schemas/proto/nsys_rep.proto`` gives them."""

from __future__ import annotations

import re

from tracekit.readers.common.protobuf import field_numbers as declared

_FILE = "nsys_rep"


def fields_of(message: str) -> declared.FieldNumbers:
    """Return the numbers of the fields of a message as attributes: ``fields_of("Event").api_call`` is 108."""
    return declared.field_numbers(_FILE, message)


def field_path(message: str, names: str) -> tuple[int, ...]:
    """Return the numbers of nested fields: ``field_path("GpuActivity", "kernel.grid_x")`` is (101, 10)."""
    return declared.field_path(_FILE, message, names)


def snake_case(column: str) -> str:
    """Return the name of a column of an export in snake case, as fields are named: ``"gridX"`` becomes ``"grid_x"``."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", column).lower()
