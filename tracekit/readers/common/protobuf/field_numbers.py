"""Look up the numbers of the fields that ``schemas/proto`` declares, without importing the protobuf runtime.

The numbers are read from compiled schema files with the decoder in ``wire``. Importing the runtime takes longer than
opening most reports.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit.readers.common.protobuf.wire import Message
from tracekit.schemas import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE, _MESSAGE_TYPE, _NAME, _FIELD, _FIELD_NUMBER, _TYPE_NAME = 1, 4, 1, 2, 3, 6
"""Numbers of fields in ``descriptor.proto``, the protobuf schema that describes compiled schema files."""


class FieldNumbers:
    """The field numbers of one declared message.

    The number of a field is the attribute with its name: ``field_numbers(file, "Event").api_call``.

    Attributes:
        message_types: Name of the message type of each field that holds a message, by field name.
    """

    def __init__(self, numbers: Mapping[str, int], message_types: Mapping[str, str]) -> None:
        vars(self).update(numbers)
        self.message_types = message_types

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...


@functools.cache
def field_numbers(file: str, message: str) -> FieldNumbers:
    """Return the field numbers of a declared message.

    Args:
        file: Name of the schema file in ``schemas/proto``, without suffix.
        message: Name of the message.
    """
    numbers: dict[str, int] = {}
    message_types: dict[str, str] = {}
    for field in _declared_messages(file)[message].iter_messages(_FIELD):
        name, type_name = field.text(_NAME) or "", field.text(_TYPE_NAME)
        numbers[name] = field.int_value(_FIELD_NUMBER) or 0
        if type_name:
            message_types[name] = type_name.rpartition(".")[2]
    return FieldNumbers(numbers, message_types)


def field_path(file: str, message: str, names: str) -> tuple[int, ...]:
    """Return the field numbers along a path of nested fields: (101, 10) for ``kernel.grid_x`` of ``GpuActivity``.

    Args:
        file: Name of the schema file in ``schemas/proto``, without suffix.
        message: Name of the outermost message.
        names: Names of the fields joined by dots, from the outermost to the innermost field.
    """
    first, _, rest = names.partition(".")
    fields = field_numbers(file, message)
    number = getattr(fields, first)
    return (number, *field_path(file, fields.message_types[first], rest)) if rest else (number,)


@functools.cache
def _declared_messages(file: str) -> dict[str, Message]:
    """Return the descriptors of the messages that a schema file declares, by message name."""
    compiled = Message(memoryview((FOLDER / "proto" / f"{file}.binpb").read_bytes()))
    declared = [message for part in compiled.iter_messages(_FILE) for message in part.iter_messages(_MESSAGE_TYPE)]
    return {message.text(_NAME) or "": message for message in declared}
