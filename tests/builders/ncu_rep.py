"""Nsight Compute reports made for tests: packed from messages, or real ones taken apart, changed and packed again."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.readers.ncu_rep.container import KINDS, MAGIC, VERSION, message_class

ROOT = Path(__file__).parents[2]
FIXTURES = sorted((ROOT / "fixtures" / "ncu").glob("*.ncu-rep"))
SHARED = ROOT.parent / "shared"
COUNTS = ("sources", *KINDS)


def sized(data: bytes, *, size: int | None = None) -> bytes:
    """Put its size before a message; ``size`` may lie."""
    return struct.pack("<I", len(data) if size is None else size) + data


def made(name: str, /, **fields: Any) -> bytes:
    """A message in bytes."""
    encoded: bytes = message_class(name)(**fields).SerializeToString()
    return encoded


def metric(name: int, instances: int = 0, /, **value: Any) -> bytes:
    """A metric: value by the name of its field, and so many instances."""
    fields: dict[str, Any] = {"value": message_class("Value")(**value)} if value else {}
    return made("Metric", name=name, instances=[b"\x12\x02\x28\x01"] * instances, **fields)


@dataclass(frozen=True)
class Block:
    """A block: its header without counts and size, and its messages by what they are counted as."""

    header: bytes = b""
    messages: Sequence[tuple[str, bytes]] = ()

    def pack(self) -> bytes:
        header = message_class("BlockHeader").FromString(self.header)
        for counted in COUNTS:
            number = sum(kind == counted for kind, _ in self.messages)
            if number or header.HasField(counted):
                setattr(header, counted, number)
        payload = b"".join(sized(m) for counted in COUNTS for kind, m in self.messages if kind == counted)
        header.payload_bytes = len(payload)
        return sized(header.SerializeToString()) + payload


def block(*messages: tuple[str, bytes], names: Iterable[str] = (), process: int | None = None, **session: Any) -> Block:
    """A block with a header that says some things."""
    header = message_class("BlockHeader")()
    header.names.texts.extend(n.encode() for n in names)
    if process is not None:
        header.process.process_id = process
        header.process.path = f"/home/someone/program{process}".encode()
    if session:
        header.session.MergeFrom(message_class("Session")(**session))
    return Block(header.SerializeToString(), messages)


def report(*blocks: Block, version: int = VERSION) -> bytes:
    """A report file."""
    return MAGIC + sized(made("FileHeader", version=version)) + b"".join(b.pack() for b in blocks)


def kernel(*metrics: bytes, **fields: Any) -> tuple[str, bytes]:
    """A kernel result."""
    return "kernels", made("KernelResult", metrics=metrics, **{"thread_id": 1, **fields})


def take_apart(data: bytes) -> list[Block]:
    """Take a real report apart; packed again it holds the same."""
    (size,) = struct.unpack_from("<I", data, len(MAGIC))
    at, blocks = len(MAGIC) + 4 + size, []
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at)
        header = message_class("BlockHeader").FromString(data[at + 4 : at + 4 + size])
        at += 4 + size
        messages = []
        for counted in COUNTS:
            for _ in range(getattr(header, counted)):
                (size,) = struct.unpack_from("<I", data, at)
                messages.append((counted, data[at + 4 : at + 4 + size]))
                at += 4 + size
        blocks.append(Block(header.SerializeToString(), messages))
    return blocks
