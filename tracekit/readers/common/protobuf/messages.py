"""Messages declared in ``schemas/proto``, taken apart by the protobuf runtime."""

from __future__ import annotations

from typing import Any

from tracekit.readers.common.damage import Damage
from tracekit.schemas import message

__all__ = ["message", "parse"]


def parse(kind: Any, data: bytes | memoryview, what: str) -> Any:
    """Take a message apart: n bytes in; fields that are not declared are passed over.

    Raises:
        Damage: It is no message.
    """
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(bytes(data))
    except DecodeError as e:
        raise Damage(f"{what} of {len(data)} bytes is no message") from e
