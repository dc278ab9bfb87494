"""A made report with an event of every kind that is decoded, each with all fields that are declared, to start from.

The fields are those of ``schemas/proto/nsys_rep.proto``, so that a message that is added there is in the report, too.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace

from google.protobuf import descriptor_pb2
from tests.builders.nsys_rep import Parts, Value, message, strings
from tracekit import schemas
from tracekit.readers.common.protobuf.decoding import Message
from tracekit.readers.nsys_rep import layout
from tracekit.readers.nsys_rep.container import CLOCKS, OPTIONS, UI_DATA
from tracekit.readers.nsys_rep.layout import load_fields
from tracekit.readers.redaction.nsys_rep.editors import AGENTS

Declared = Mapping[str, descriptor_pb2.DescriptorProto]
FIELD = descriptor_pb2.FieldDescriptorProto
REAL = {FIELD.TYPE_DOUBLE: "<d", FIELD.TYPE_FLOAT: "<f", FIELD.TYPE_FIXED64: "<Q", FIELD.TYPE_FIXED32: "<I"}
SECTIONS = {UI_DATA: "UiData", OPTIONS: "AnalysisOptions", AGENTS: "AgentActivities"}
SECTIONS |= {CLOCKS: "TimeConversions"}
TEXTS = [f"text {i}" for i in range(64)]
EVENT_TYPES = {layout.NVTX: (59, 60, 34, 33, 39, 75), layout.GPU: (79, 80, 106, 127, 130)}
DEFAULT_TYPES = {layout.MEMORY_USAGE: (117,), layout.MEMORY_POOL: (129,), layout.DIAGNOSTIC: (49,)}
DEFAULT_TYPES |= {layout.CONTEXT_SWITCH: (58,), layout.CPU_PAGE_FAULT: (119,), layout.GPU_PAGE_FAULT: (120,)}
DEFAULT_TYPES |= {layout.PERFORMANCE_COUNTER: (128,)}


@functools.cache
def declared() -> Declared:
    """The declared messages by name."""
    files = descriptor_pb2.FileDescriptorSet.FromString((schemas.FOLDER / "proto" / "nsys_rep.binpb").read_bytes())
    return {m.name: m for m in files.file[0].message_type}


def payload_messages() -> dict[int, str]:
    """The message of each payload of an event, by the number of its field."""
    return {f.number: f.type_name.rpartition(".")[2] for f in declared()["Event"].field if f.type_name}


def filled(name: str, **values: Value) -> bytes:
    """A message with a value in every field: those given, numbers that are ids of strings, texts, and messages."""
    return b"".join(_field(f, values) for f in declared()[name].field)


def _field(field: descriptor_pb2.FieldDescriptorProto, values: Mapping[str, Value]) -> bytes:
    if field.name in values:
        return message((field.number, values[field.name]))
    if field.type == FIELD.TYPE_MESSAGE:
        return message((field.number, filled(field.type_name.rpartition(".")[2])))
    if field.type in REAL:
        data = struct.pack(REAL[field.type], field.number)
        return bytes(_key(field.number, 1 if len(data) == 8 else 5)) + data
    return message((field.number, "text" if field.type in (FIELD.TYPE_BYTES, FIELD.TYPE_STRING) else field.number % 50))


def _key(number: int, wire_type: int) -> Iterator[int]:
    key = number << 3 | wire_type
    while key > 127:
        yield key & 127 | 128
        key >>= 7
    yield key


def events() -> Iterator[bytes]:
    """An event for each event type and class of each source table, with all fields of its payload."""
    kinds: dict[tuple[int, int, int | None], None] = {}
    for table in layout.TABLES.values():
        types = table.event_types or EVENT_TYPES.get(table.payload) or DEFAULT_TYPES[table.payload]
        kinds |= dict.fromkeys((table.payload, t, c) for t in types for c in table.event_classes or (None,))
    thread = 1 << 56 | 7 << 24 | 9
    of_class = layout.CLASS
    names = {f.number: f.name for f in declared()["ApiCall"].field}
    for payload, event_type, event_class in kinds:
        name = payload_messages()[payload]
        ids = {f.name: thread for f in declared()[name].field if f.name in ("global_tid", "end_global_tid")}
        ids |= {f.name: 7 << 24 for f in declared()[name].field if f.name == "global_pid"}
        if event_class is not None:
            ids[names[of_class]] = event_class
        if payload == layout.NVTX:
            ids["event_type"] = event_type
        yield message((1, message((1, event_type), (payload, filled(name, **ids)))))
        if event_class in layout.OPENACC_CLASSES:
            other = filled(name, **ids, openacc=message((load_fields("OpenAcc").event_kind, 9)))
            yield message((1, message((1, event_type), (payload, other))))


def generic_event(source: int) -> bytes:
    return message((2, message((1, source), (2, 5), (3, b"\1\2"), (4, filled("GenericOrigin")))))


def made_report() -> bytes:
    """The bytes of the report."""
    source, counters = 1 << 48 | 1 << 32, 1 << 48 | 2 << 32
    generic = message((1, source), (3, message((1, 2), (2, 0), (3, 2))))
    counter = message((1, counters), (2, 3), (3, message((1, 2), (2, 0), (3, 2), (8, 0))))
    cards = message((1, filled("NetworkDevice")), (1, filled("NetworkDevice", nic_id=1)))
    listed = [(13, "cpu"), (205, "580.1"), (605, "Linux"), (611, "12080"), (610, "A=b\0"), (910, cards)]
    properties = message(*((1, message((1, number), (2, value))) for number, value in listed))
    target = message((1, "Local (CLI)"), (2, properties), (3, 1 << 48))
    header = filled("CaptureHeader", targets=target)
    blocks = [b"".join(events()), generic_event(source) + generic_event(counters)]
    names = filled("ThreadNames", threads=filled("ThreadName", global_tid=1 << 56 | 7 << 24 | 9))
    sections = {name: filled(root) for name, root in SECTIONS.items()}
    sections[UI_DATA] = filled("UiData", build="2026.2.1.210-made")
    texts = strings(*TEXTS[:-2], "GenericCounters", "GpuMetrics") + message((2, filled("ProcessStream")))
    made = Parts(blocks, [texts], header=header, rest=[names, filled("Trailer")], sections=sections)
    sources = [(13, message((1, number), (3, len(TEXTS) - nth))) for nth, number in ((1, source), (2, counters))]
    stream = made.counts() + message((5, 1), *sources, (14, generic), (14, counter))
    return replace(made, stream=stream).pack()


def messages_in(name: str, data: bytes | memoryview) -> Iterator[str]:
    """Yield the names of the declared messages that are inside a message, and its own."""
    yield name
    found = Message(memoryview(data))
    for field in declared()[name].field:
        if field.type == FIELD.TYPE_MESSAGE:
            for part in found.bytes_values(field.number):
                yield from messages_in(field.type_name.rpartition(".")[2], part)
    if name == "Property" and found.int_value(load_fields("Property").id) == 910:
        yield from messages_in("NetworkDevices", found.bytes_value(load_fields("Property").value))
