"""Detect which protobuf message a TensorFlow file contains.

Protobuf files have no magic number. Therefore, the head of the file is parsed as each supported message type.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tracekit.readers.common.damage import Damage
from tracekit.readers.common.protobuf.decoding import DELIMITED, FIXED32, FIXED64, MAX_VARINT, VARINT, read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    FieldValue: TypeAlias = "int | memoryview"


class FileMessage(enum.Enum):
    """Types of protobuf messages that TensorFlow stores as files."""

    GRAPH = "GraphDef"
    META_GRAPH = "MetaGraphDef"
    SAVED_MODEL = "SavedModel"
    RUN_METADATA = "RunMetadata"


class FileForm(NamedTuple):
    """The type of the message in a file, and whether the file is in text format."""

    message: FileMessage
    is_text: bool = False


_SEPARATOR = rb"(?:\s|#[^\n]*(?:\n|$))*"
_TEXT = re.compile(
    rb"(?:\xef\xbb\xbf)?" + _SEPARATOR + rb"([a-z_]+)\s*(?::\s*\d|:?\s*[{<])" + _SEPARATOR + rb"([a-z_]*)",
)
"""Pattern of text format. Its groups are the name of the first field and the name of the first field inside it."""
_NOT_TEXT = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_NODE = (b"name", b"op", b"input", b"device", b"attr", b"experimental_debug_info", b"")
_FIRST_TEXT_FIELDS: dict[bytes, tuple[FileMessage, tuple[bytes, ...] | None]] = {
    b"node": (FileMessage.GRAPH, _NODE),
    b"versions": (FileMessage.GRAPH, (b"producer", b"min_consumer", b"bad_consumers", b"")),
    b"library": (FileMessage.GRAPH, (b"function", b"gradient", b"")),
    b"saved_model_schema_version": (FileMessage.SAVED_MODEL, None),
    b"meta_graphs": (FileMessage.SAVED_MODEL, None),
    b"meta_info_def": (FileMessage.META_GRAPH, None),
    b"graph_def": (FileMessage.META_GRAPH, None),
    b"step_stats": (FileMessage.RUN_METADATA, None),
    b"cost_graph": (FileMessage.RUN_METADATA, None),
    b"partition_graphs": (FileMessage.RUN_METADATA, None),
    b"dev_stats": (FileMessage.RUN_METADATA, None),
}
"""Type of the message and the fields that may come first inside its first field, by the name of the first field."""

_OPERATION = re.compile(rb"[A-Za-z_][A-Za-z0-9_.\\/>\-]*\Z")
_RELEASE = re.compile(rb"\d+\.\d+")
_DEVICE = re.compile(rb"/(?:job|device|host|gpu|cpu|stream)", re.IGNORECASE)
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_MAX_FIELDS = 64
"""Maximum number of fields that are examined in a message."""

_NAME, _OP, _DEVICE_NAME = 1, 2, 4
_NODE_FIELDS = dict.fromkeys(range(1, 8), DELIMITED)
_NODES, _LIBRARY, _VERSION, _VERSIONS, _DEBUG_INFO = range(1, 6)
_FUNCTION_LIBRARY_FIELDS = dict.fromkeys(range(1, 4), DELIMITED)
_PRODUCER, _MIN_CONSUMER, _BAD_CONSUMERS = range(1, 4)
_META_GRAPH_FIELDS = dict.fromkeys(range(1, 8), DELIMITED)
_SCHEMA_VERSION, _META_GRAPHS = 1, 2
_INFO, _OPERATIONS, _RELEASES = 1, 2, 5


def detect_file_form(head: bytes) -> FileForm | None:
    """Return the message type and format of a TensorFlow file, given its first bytes, or None if no type matches."""
    if not _NOT_TEXT.search(head) and (match := _TEXT.match(head)):
        message, subfields = _FIRST_TEXT_FIELDS.get(match[1], (None, None))
        if message and (subfields is None or match[2] in subfields):
            return FileForm(message, is_text=True)
    view = memoryview(head)
    return next((FileForm(message) for message, detector in _DETECTORS.items() if detector(view)), None)


def _is_saved_model(data: memoryview) -> bool:
    fields = _read_expected_fields(data, {_SCHEMA_VERSION: VARINT, _META_GRAPHS: DELIMITED})
    return fields.get(_SCHEMA_VERSION) == [1] and all(
        map(_has_meta_graph_fields, _iterate_submessages(fields, _META_GRAPHS))
    )


def _has_meta_graph_fields(data: memoryview) -> bool:
    return bool(_read_expected_fields(data, _META_GRAPH_FIELDS))


def _is_meta_graph(data: memoryview) -> bool:
    return any(map(_is_meta_info, _iterate_submessages(_read_expected_fields(data, _META_GRAPH_FIELDS), _INFO)))


def _is_meta_info(data: memoryview) -> bool:
    """Return whether a message is a ``MetaInfoDef`` that contains operations or a TensorFlow version."""
    fields = _read_leading_fields(data)
    releases = [v for n, v in fields if n == _RELEASES and not isinstance(v, int)]
    operations = [v for n, v in fields if n == _OPERATIONS and not isinstance(v, int)]
    return any(_RELEASE.match(v) for v in releases) or any(map(_has_operations, operations))


def _has_operations(data: memoryview) -> bool:
    first = _read_first_submessage(_read_first_submessage(data))
    return bool(first) and bool(_OPERATION.match(first))


def _is_graph(data: memoryview) -> bool:
    kinds = dict.fromkeys((_NODES, _LIBRARY, _VERSIONS, _DEBUG_INFO), DELIMITED)
    fields = _read_expected_fields(data, kinds | {_VERSION: VARINT})
    results = [
        detector(submessage)
        for number, detector in _GRAPH_FIELD_DETECTORS.items()
        for submessage in _iterate_submessages(fields, number)
    ]
    return bool(results) and all(results)


def _is_node(data: memoryview) -> bool:
    fields = _read_expected_fields(data, _NODE_FIELDS)
    names, operations = list(_iterate_submessages(fields, _NAME)), list(_iterate_submessages(fields, _OP))
    if any(_NOT_TEXT.search(name) for name in names):
        return False
    if operations:
        return all(_OPERATION.match(operation) for operation in operations)
    return bool(names) and fields.keys() <= {_NAME, _DEVICE_NAME}


def _is_function_library(data: memoryview) -> bool:
    return bool(_read_expected_fields(data, _FUNCTION_LIBRARY_FIELDS)) or not data


def _is_version_def(data: memoryview) -> bool:
    kinds = {_PRODUCER: VARINT, _MIN_CONSUMER: VARINT}
    return bool(
        _read_expected_fields(data, kinds | {_BAD_CONSUMERS: VARINT})
        or _read_expected_fields(data, kinds | {_BAD_CONSUMERS: DELIMITED})
    )


def _is_run_metadata(data: memoryview) -> bool:
    """Return whether a message starts like ``RunMetadata``.

    The message must start with ``StepStats``. The first ``DeviceStepStats`` in it must start with a device name.
    """
    return bool(_DEVICE.match(_read_first_submessage(_read_first_submessage(_read_first_submessage(data)))))


_GRAPH_FIELD_DETECTORS = {_NODES: _is_node, _LIBRARY: _is_function_library, _VERSIONS: _is_version_def}
_DETECTORS = {
    FileMessage.SAVED_MODEL: _is_saved_model,
    FileMessage.GRAPH: _is_graph,
    FileMessage.META_GRAPH: _is_meta_graph,
    FileMessage.RUN_METADATA: _is_run_metadata,
}


def _read_first_submessage(data: memoryview) -> memoryview:
    """Return the value of the first field of a message.

    The result is empty unless the field has number 1 and contains bytes.
    """
    number, value = next(iter(_read_leading_fields(data)), (0, 0))
    return value if number == 1 and not isinstance(value, int) else memoryview(b"")


def _iterate_submessages(fields: dict[int, list[FieldValue]], number: int) -> Iterator[memoryview]:
    """Yield those values of the field with the given number that consist of bytes."""
    return (v for v in fields.get(number, ()) if not isinstance(v, int))


def _read_expected_fields(data: memoryview, wire_types: Mapping[int, int]) -> dict[int, list[FieldValue]]:
    """Return the values of the fields at the beginning of a message, by field number.

    The result is empty if a field is unexpected. A field is expected if ``wire_types`` maps its number to its wire
    type.
    """
    fields: dict[int, list[FieldValue]] = {}
    for number, value in _read_leading_fields(data):
        if wire_types.get(number) != (VARINT if isinstance(value, int) else DELIMITED):
            return {}
        fields.setdefault(number, []).append(value)
    return fields


def _read_leading_fields(data: memoryview) -> list[tuple[int, FieldValue]]:
    """Return the number and the value of each field at the beginning of a message.

    The last value may be truncated. The list is empty if the data is not a message.
    """
    try:
        return list(_iterate_fields(data))
    except Damage:
        return []


def _iterate_fields(data: memoryview) -> Iterator[tuple[int, FieldValue]]:
    offset = 0
    for _ in range(_MAX_FIELDS):
        if offset >= len(data):
            return
        try:
            key, offset = read_varint(data, offset)
            size, start = read_varint(data, offset) if key & 7 in (VARINT, DELIMITED) else (0, offset)
        except Damage:
            if len(data) - offset < MAX_VARINT:
                return
            raise
        wire_type = key & 7
        if not key >> 3 or wire_type not in (VARINT, DELIMITED, *_WIDTHS):
            raise Damage("the bytes are not a protobuf message: the number or the type of a field is invalid")
        stop = start + (size if wire_type == DELIMITED else _WIDTHS.get(wire_type, 0))
        yield key >> 3, size if wire_type == VARINT else data[start:stop]
        offset = stop
