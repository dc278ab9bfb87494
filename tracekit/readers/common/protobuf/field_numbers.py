"""Numbers of the fields that ``schemas/proto`` declares, for code that decodes messages without the protobuf runtime.

They are read from the compiled file. To import the runtime for that would take longer than to open most reports.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tracekit.readers.common.protobuf.wire import Message
from tracekit.schemas import FOLDER

if TYPE_CHECKING:
    from collections.abc import Mapping

_FILE, _MESSAGE_TYPE, _NAME, _FIELD, _FIELD_NUMBER, _TYPE_NAME = 1, 4, 1, 2, 3, 6
"""Numbers of fields in protobuf's own ``descriptor.proto``, which describes compiled files."""


class FieldNumbers:
    """The numbers of the fields of one declared message, as attributes: ``Event.api_call`` is 108.

    Attributes:
        message_types: The names of the messages that fields hold, by name of the field.
    """

    def __init__(self, numbers: Mapping[str, int], message_types: Mapping[str, str]) -> None:
        vars(self).update(numbers)
        self.message_types = message_types

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> int: ...


@functools.cache
def field_numbers(file: str, message: str) -> FieldNumbers:
    """Return the numbers of the fields of a message.

    Args:
        file: Name of the file in ``schemas/proto``, without suffix.
        message: Name of the message.
    """
    numbers: dict[str, int] = {}
    message_types: dict[str, str] = {}
    for field in _declared_messages(file)[message].each(_FIELD):
        name, type_name = field.text(_NAME) or "", field.text(_TYPE_NAME)
        numbers[name] = field.number(_FIELD_NUMBER) or 0
        if type_name:
            message_types[name] = type_name.rpartition(".")[2]
    return FieldNumbers(numbers, message_types)


def field_path(file: str, message: str, names: str) -> tuple[int, ...]:
    """Return the numbers of nested fields: ``"kernel.grid_x"`` of ``GpuActivity`` is (101, 10).

    Args:
        file: Name of the file in ``schemas/proto``, without suffix.
        message: Name of the outermost message.
        names: Names of the fields, from the outermost to the innermost one, joined by dots.
    """
    first, _, rest = names.partition(".")
    fields = field_numbers(file, message)
    number = getattr(fields, first)
    return (number, *field_path(file, fields.message_types[first], rest)) if rest else (number,)


@functools.cache
def _declared_messages(file: str) -> dict[str, Message]:
    """Return the descriptors of the messages of a file, by name of the message."""
    compiled = Message(memoryview((FOLDER / "proto" / f"{file}.binpb").read_bytes()))
    declared = [message for part in compiled.each(_FILE) for message in part.each(_MESSAGE_TYPE)]
    return {message.text(_NAME) or "": message for message in declared}
