"""Look up the field numbers of the messages of a report by the names that ``schemas/proto/nsys_rep.proto`` declares."""

from __future__ import annotations

import re

from tracekit.readers.common.protobuf import field_numbers as declared

_FILE = "nsys_rep"


def fields_of(message: str) -> declared.FieldNumbers:
    """Return the field numbers of a message as attributes: ``fields_of("Event").api_call`` is 108."""
    return declared.field_numbers(_FILE, message)


def field_path(message: str, names: str) -> tuple[int, ...]:
    """Return the field numbers along a path: ``field_path("GpuActivity", "kernel.grid_x")`` is (101, 10)."""
    return declared.field_path(_FILE, message, names)


def snake_case(column: str) -> str:
    """Convert the name of an export column to the snake case of field names: ``"gridX"`` becomes ``"grid_x"``."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", column).lower()
