"""What a file of TensorFlow is. Protobuf has no magic, so the first bytes are taken apart as each of the messages."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.wire import DELIMITED, FIXED32, FIXED64, MAX_VARINT, VARINT, varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Value: TypeAlias = "int | memoryview"


class Message(enum.Enum):
    """Messages that are files of their own."""

    GRAPH = "GraphDef"
    META_GRAPH = "MetaGraphDef"
    SAVED_MODEL = "SavedModel"
    RUN_METADATA = "RunMetadata"


class Form(NamedTuple):
    """What a file holds, and whether it is written as text."""

    message: Message
    text: bool = False


_BETWEEN = rb"(?:\s|#[^\n]*(?:\n|$))*"
_TEXT = re.compile(
    rb"(?:\xef\xbb\xbf)?" + _BETWEEN + rb"([a-z_]+)\s*(?::\s*\d|:?\s*[{<])" + _BETWEEN + rb"([a-z_]*)",
)
"""The first field of a text, and the first one inside of it."""
_NOT_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NODE = (b"name", b"op", b"input", b"device", b"attr", b"experimental_debug_info", b"")
_BEGINS: dict[bytes, tuple[Message, tuple[bytes, ...] | None]] = {
    b"node": (Message.GRAPH, _NODE),
    b"versions": (Message.GRAPH, (b"producer", b"min_consumer", b"bad_consumers", b"")),
    b"library": (Message.GRAPH, (b"function", b"gradient", b"")),
    b"saved_model_schema_version": (Message.SAVED_MODEL, None),
    b"meta_graphs": (Message.SAVED_MODEL, None),
    b"meta_info_def": (Message.META_GRAPH, None),
    b"graph_def": (Message.META_GRAPH, None),
    b"step_stats": (Message.RUN_METADATA, None),
    b"cost_graph": (Message.RUN_METADATA, None),
    b"partition_graphs": (Message.RUN_METADATA, None),
    b"dev_stats": (Message.RUN_METADATA, None),
}
"""First fields of files written as text, and the fields that may begin inside."""

_OPERATION = re.compile(rb"[A-Za-z_][A-Za-z0-9_.\\/>\-]*\Z")
_RELEASE = re.compile(rb"\d+\.\d+")
_DEVICE = re.compile(rb"/(?:job|device|host|gpu|cpu|stream)", re.IGNORECASE)
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_PARTS = 64
"""Fields that are looked at."""

_NAME, _OP, _DEVICE_NAME = 1, 2, 4
_NODE_FIELDS = dict.fromkeys(range(1, 8), DELIMITED)
_NODES, _LIBRARY, _VERSION, _VERSIONS, _DEBUG_INFO = range(1, 6)
_LIBRARY_FIELDS = dict.fromkeys(range(1, 4), DELIMITED)
_PRODUCER, _MIN_CONSUMER, _BAD_CONSUMERS = range(1, 4)
_META_FIELDS = dict.fromkeys(range(1, 8), DELIMITED)
_SCHEMA_VERSION, _META_GRAPHS = 1, 2
_INFO, _OPERATIONS, _RELEASES = 1, 2, 5


def form(head: bytes) -> Form | None:
    """Tell what a file is by its first bytes; None if it is nothing of TensorFlow that is known."""
    if not _NOT_TEXT.search(head) and (found := _TEXT.match(head)):
        message, inside = _BEGINS.get(found[1], (None, None))
        if message and (inside is None or found[2] in inside):
            return Form(message, text=True)
    view = memoryview(head)
    return next((Form(message) for message, is_it in _IS.items() if is_it(view)), None)


def _is_saved_model(data: memoryview) -> bool:
    found = _message(data, {_SCHEMA_VERSION: VARINT, _META_GRAPHS: DELIMITED})
    return found.get(_SCHEMA_VERSION) == [1] and all(map(_is_meta, _parts(found, _META_GRAPHS)))


def _is_meta(data: memoryview) -> bool:
    return bool(_message(data, _META_FIELDS))


def _is_meta_graph(data: memoryview) -> bool:
    return any(map(_is_info, _parts(_message(data, _META_FIELDS), _INFO)))


def _is_info(data: memoryview) -> bool:
    """Whether it is what a meta graph says of itself: operations, or the version of TensorFlow."""
    found = _fields(data)
    releases = [v for n, v in found if n == _RELEASES and not isinstance(v, int)]
    listed = [v for n, v in found if n == _OPERATIONS and not isinstance(v, int)]
    return any(_RELEASE.match(v) for v in releases) or any(map(_lists_operations, listed))


def _lists_operations(data: memoryview) -> bool:
    first = _first(_first(data))
    return bool(first) and bool(_OPERATION.match(first))


def _is_graph(data: memoryview) -> bool:
    kinds = dict.fromkeys((_NODES, _LIBRARY, _VERSIONS, _DEBUG_INFO), DELIMITED)
    found = _message(data, kinds | {_VERSION: VARINT})
    told = [is_it(part) for number, is_it in _IN_GRAPH.items() for part in _parts(found, number)]
    return bool(told) and all(told)


def _is_node(data: memoryview) -> bool:
    found = _message(data, _NODE_FIELDS)
    names, operations = list(_parts(found, _NAME)), list(_parts(found, _OP))
    if any(_NOT_TEXT.search(name) for name in names):
        return False
    if operations:
        return all(_OPERATION.match(operation) for operation in operations)
    return bool(names) and found.keys() <= {_NAME, _DEVICE_NAME}


def _is_library(data: memoryview) -> bool:
    return bool(_message(data, _LIBRARY_FIELDS)) or not data


def _is_versions(data: memoryview) -> bool:
    kinds = {_PRODUCER: VARINT, _MIN_CONSUMER: VARINT}
    return bool(_message(data, kinds | {_BAD_CONSUMERS: VARINT}) or _message(data, kinds | {_BAD_CONSUMERS: DELIMITED}))


def _is_run_metadata(data: memoryview) -> bool:
    """Whether it begins with the statistics of a step, and these with those of a device."""
    return bool(_DEVICE.match(_first(_first(_first(data)))))


_IN_GRAPH = {_NODES: _is_node, _LIBRARY: _is_library, _VERSIONS: _is_versions}
_IS = {
    Message.SAVED_MODEL: _is_saved_model,
    Message.GRAPH: _is_graph,
    Message.META_GRAPH: _is_meta_graph,
    Message.RUN_METADATA: _is_run_metadata,
}


def _first(data: memoryview) -> memoryview:
    """Return the first field of a message, if that is field 1 and holds bytes."""
    number, value = next(iter(_fields(data)), (0, 0))
    return value if number == 1 and not isinstance(value, int) else memoryview(b"")


def _parts(found: dict[int, list[Value]], number: int) -> Iterator[memoryview]:
    return (v for v in found.get(number, ()) if not isinstance(v, int))


def _message(data: memoryview, kinds: Mapping[int, int]) -> dict[int, list[Value]]:
    """Return the first fields of a message by number; none if it has others, or of other kinds."""
    found: dict[int, list[Value]] = {}
    for number, value in _fields(data):
        if kinds.get(number) != (VARINT if isinstance(value, int) else DELIMITED):
            return {}
        found.setdefault(number, []).append(value)
    return found


def _fields(data: memoryview) -> list[tuple[int, Value]]:
    """Return the first fields of a message, of which the last may be cut off; none if it is no message."""
    try:
        return list(_walked(data))
    except Damage:
        return []


def _walked(data: memoryview) -> Iterator[tuple[int, Value]]:
    at = 0
    for _ in range(_PARTS):
        if at >= len(data):
            return
        try:
            key, at = varint(data, at)
            size, start = varint(data, at) if key & 7 in (VARINT, DELIMITED) else (0, at)
        except Damage:
            if len(data) - at < MAX_VARINT:
                return
            raise
        kind = key & 7
        if not key >> 3 or kind not in (VARINT, DELIMITED, *_WIDTHS):
            raise Damage("no message")
        stop = start + (size if kind == DELIMITED else _WIDTHS.get(kind, 0))
        yield key >> 3, size if kind == VARINT else data[start:stop]
        at = stop
