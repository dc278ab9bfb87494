"""Parse protobuf messages that ``schemas/proto`` declares, with the protobuf runtime."""

from __future__ import annotations

from typing import Any

from tracekit.readers.common.damage import Damage
from tracekit.schemas import load_message_class

__all__ = ["load_message_class", "parse"]


def parse(message_type: Any, data: bytes | memoryview, noun_phrase: str) -> Any:
    """Return a message parsed with the protobuf runtime. Fields that the schema does not declare are ignored.

    Args:
        message_type: The class of the message.
        data: The encoded message.
        noun_phrase: Noun phrase for the message in the error message, such as "the header".

    Raises:
        Damage: The bytes are not a valid message.
    """
    from google.protobuf.message import DecodeError

    try:
        return message_type.FromString(bytes(data))
    except DecodeError as e:
        raise Damage(f"{noun_phrase} is not a valid protobuf message ({len(data)} bytes)") from e
