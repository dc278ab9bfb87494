"""Messages declared in ``schemas/proto``, taken apart by the protobuf runtime.

The compiled file is loaded into a pool of its own. Generated code would refuse every runtime older than its compiler,
and share its names with whatever else the process has loaded.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tracekit import schemas
from tracekit.readers.common.damage import Damage

if TYPE_CHECKING:
    from google.protobuf.descriptor_pool import DescriptorPool


@functools.cache
def message(file: str, name: str) -> Any:
    """Return the class of a message.

    Args:
        file: Name of the file in ``schemas/proto``, without suffix.
        name: Name of the message.
    """
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(_pool(file).FindMessageTypeByName(f"tracekit.{file}.{name}"))


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


@functools.cache
def _pool(file: str) -> DescriptorPool:
    from google.protobuf import descriptor_pb2, descriptor_pool

    compiled = descriptor_pb2.FileDescriptorSet.FromString((schemas.FOLDER / "proto" / f"{file}.binpb").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for part in compiled.file:
        pool.AddSerializedFile(part.SerializeToString())
    return pool
