"""Convert the names of collectives and data types to those of the declared tables."""

from __future__ import annotations

import re

_KINDS = (
    ("barrier", r"barrier"),
    ("all_reduce", r"all_?reduce"),
    ("all_gather", r"all_?gather"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_to_all", r"all_?to_?all"),
    ("broadcast", r"broadcast|bcast"),
    ("send", r"send(?!_?recv)"),
    ("recv", r"recv"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("reduce", r"reduce"),
)
_SEND_RECV = re.compile(r"send_?recv")
_MESSAGE = re.compile(r"(send|recv) (\d{1,9})(?:->|<-)(\d{1,9})$")
_TYPES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "char": "int8",
    "byte": "uint8",
    "float8_e4m3fn": "float8_e4m3",
    "float8e4m3": "float8_e4m3",
    "float8e5m2": "float8_e5m2",
    "complexfloat": "complex64",
    "complexdouble": "complex128",
}
_WIDTHS = {"bool": 1, "float8_e4m3": 1, "float8_e5m2": 1, "bfloat16": 2}
_NUMBER_TYPE = re.compile(r"(?:float|u?int|complex)(8|16|32|64|128)")
MESSAGES = ("send", "recv")
RECEIVED = ("reduce_scatter", "recv", "scatter")
"""Kinds whose message is the output of a rank. For other kinds, it is the input."""


def find_call_kind(name: str) -> str | None:
    """Return the kind of a call, given its name in a log: ``all_reduce`` for ``nccl:all_reduce`` or ``AllReduce``."""
    text = name.lower().removeprefix("nccl:")
    if _SEND_RECV.search(text):
        return None
    return next((kind for kind, pattern in _KINDS if re.search(pattern, text)), None)


def parse_peer(name: str) -> int | None:
    """Return the rank of the other side of a message, given its name, such as ``nccl:send 0->1``."""
    match = _MESSAGE.search(name)
    return int(match[3]) if match else None


def parse_own_rank(name: str) -> int | None:
    """Return the rank of the caller in its communicator, given the name of a message, such as ``nccl:send 0->1``."""
    match = _MESSAGE.search(name)
    return int(match[2]) if match else None


def normalize_data_type(name: str) -> str | None:
    """Return the declared name of a data type of PyTorch or NCCL: ``float32`` for ``Float`` or ``ncclFloat32``."""
    text = name.lower().removeprefix("nccl")
    return _TYPES.get(text, text) or None


def find_item_bytes(data_type: str) -> int | None:
    """Return the size of an element of a data type that ``normalize_data_type`` returned, or None if it is unknown."""
    match = _NUMBER_TYPE.fullmatch(data_type)
    return int(match[1]) // 8 if match else _WIDTHS.get(data_type)
