"""Event files made for tests: records framed by a sum worked out bit by bit, around messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracekit.readers.common.protobuf import messages

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "tensorflow"
SHARED = ROOT.parent / "shared"
CORPUS = SHARED / "corpus" / "tfevents"
WALL = 1_700_000_000.25
DOUBLE, FLOAT, INT32, UINT8, INT16, INT8, STRING, INT64, BOOL = 2, 1, 3, 4, 5, 6, 7, 9, 10
BFLOAT16, UINT16, HALF, UINT32, UINT64 = 14, 17, 19, 22, 23


def crc32c(data: bytes) -> int:
    """The sum by its definition: division of polynomials over two elements, lowest bit first."""
    found = 0xFFFFFFFF
    for octet in data:
        found ^= octet
        for _ in range(8):
            found = found >> 1 ^ (0x82F63B78 if found & 1 else 0)
    return found ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    found = crc32c(data)
    return ((found >> 15) + (found << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def framed(data: bytes) -> bytes:
    """A record."""
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", masked(size)) + data + struct.pack("<I", masked(data))


def frames(data: bytes) -> list[bytes]:
    """The data of the records at the beginning of a file, up to the first one that is not whole or not right."""
    found, at = [], 0
    while at + 12 <= len(data):
        size, sum_ = struct.unpack_from("<QI", data, at)
        body = data[at + 12 : at + 12 + size]
        rest = data[at + 12 + size : at + 16 + size]
        if masked(data[at : at + 8]) != sum_ or len(rest) < 4 or masked(body) != struct.unpack("<I", rest)[0]:
            break
        found.append(body)
        at += 16 + size
    return found


def message(name: str, /, **fields: Any) -> Any:
    return messages.load_message_class("tensorflow_events", name)(**fields)


def event(step: int = 0, wall_time: float = WALL, **fields: Any) -> bytes:
    """An event in bytes."""
    encoded: bytes = message("Event", step=step, wall_time=wall_time, **fields).SerializeToString()
    return encoded


def summary(*values: Any, step: int = 0, wall_time: float = WALL) -> bytes:
    return event(step, wall_time, summary=message("Summary", value=values))


def value(tag: str | bytes = b"t", **fields: Any) -> Any:
    plugin, data_class = fields.pop("plugin", None), fields.pop("data_class", None)
    if plugin is not None or data_class is not None:
        told = {} if plugin is None else {"plugin_data": message("PluginData", plugin_name=plugin.encode())}
        told |= {} if data_class is None else {"data_class": data_class}
        fields["metadata"] = message("SummaryMetadata", **told)
    return message("Value", tag=tag if isinstance(tag, bytes) else tag.encode(), **fields)


def scalar(step: int, number: float, tag: str = "loss", wall_time: float = WALL) -> bytes:
    return summary(value(tag, simple_value=number), step=step, wall_time=wall_time)


def tensor(dtype: int, shape: Iterable[int] = (), **fields: Any) -> Any:
    dims = [message("Dim", size=size) for size in shape]
    return message("Tensor", dtype=dtype, tensor_shape=message("Shape", dim=dims), **fields)


VERSION = event(file_version=b"brain.Event:2")


def packed(*events: bytes, version: bool = True) -> bytes:
    """A file."""
    return b"".join(framed(e) for e in ((VERSION, *events) if version else events))


def written(folder: Path, *events: bytes, name: str = "events.out.tfevents.1.host", version: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(packed(*events, version=version))
    return path
