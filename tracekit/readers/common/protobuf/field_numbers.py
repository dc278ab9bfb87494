"""Look up the numbers of the fields that ``schemas/proto`` declares, without importing the protobuf runtime.

Importing the runtime takes longer than opening most reports.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit.schemas import load_declared_fields

if TYPE_CHECKING:
    from collections.abc import Mapping


class FieldNumbers:
    """The field numbers of one protobuf message that ``schemas/proto`` declares.

    The number of a field is the attribute with the name of the field:
    ``load_field_numbers("nsys_rep", "Event").api_call``.

    Attributes:
        message_types: Name of the message type of each field that holds a message, by field name.
    """

    def __init__(self, numbers: Mapping[str, int], message_types: Mapping[str, str]) -> None:
        vars(self).update(numbers)
        self.message_types = message_types

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...


@functools.cache
def load_field_numbers(schema_name: str, message: str) -> FieldNumbers:
    """Return the field numbers of a protobuf message that ``schemas/proto`` declares.

    Args:
        schema_name: Name of the schema file in ``schemas/proto``, without suffix.
        message: Name of the message.
    """
    fields = load_declared_fields(schema_name, message)
    message_types = {name: message_type for name, (_, message_type) in fields.items() if message_type}
    return FieldNumbers({name: number for name, (number, _) in fields.items()}, message_types)


def find_field_path(schema_name: str, message: str, dotted_names: str) -> tuple[int, ...]:
    """Return the field numbers along a path of nested fields: (101, 10) for ``kernel.grid_x`` of ``GpuActivity``.

    Args:
        schema_name: Name of the schema file in ``schemas/proto``, without suffix.
        message: Name of the outermost message.
        dotted_names: Names of the fields joined by dots, from the outermost to the innermost field.
    """
    first, _, rest = dotted_names.partition(".")
    fields = load_field_numbers(schema_name, message)
    number = getattr(fields, first)
    return (number, *find_field_path(schema_name, fields.message_types[first], rest)) if rest else (number,)
