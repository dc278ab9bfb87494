"""Look up the field numbers of report messages by the field names in ``schemas/proto/nsys_rep.proto``."""

from __future__ import annotations

import re

from tracekit.readers.common.protobuf import field_numbers as declared

_FILE = "nsys_rep"


def load_fields(message_name: str) -> declared.FieldNumbers:
    """Return the field numbers of a message as attributes: ``load_fields("Event").api_call`` is 108."""
    return declared.load_field_numbers(_FILE, message_name)


def find_field_path(message_name: str, path: str) -> tuple[int, ...]:
    """Return the field numbers of a field path: ``find_field_path("GpuActivity", "kernel.grid_x")`` is (101, 10)."""
    return declared.find_field_path(_FILE, message_name, path)


def convert_to_snake_case(column: str) -> str:
    """Convert the name of an export column to the snake case of field names: ``"gridX"`` becomes ``"grid_x"``."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", column).lower()
