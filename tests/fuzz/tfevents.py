"""Mutated event files: bytes changed anywhere, and messages changed in records whose sizes and sums are right again."""

from __future__ import annotations

import random
import struct

from tests.builders import tfevents as files
from tests.builders.tfevents import event, frames, message, summary, tensor, value
from tests.fuzz.changes import DELIMITED, Field, edge, fields, of_bytes, of_message
from tracekit.native.crc32c import compute_masked_crc32c

FORMAT, SUFFIX = "tfevents", ".tfevents"


def framed(data: bytes) -> bytes:
    """A record, its sums worked out the fast way."""
    size = struct.pack("<Q", len(data))
    return size + struct.pack("<I", compute_masked_crc32c(size)) + data + struct.pack("<I", compute_masked_crc32c(data))


def _node(name: bytes) -> object:
    allocation = message("AllocationDescription", requested_bytes=64)
    described = message("TensorDescription", allocation_description=allocation)
    return message(
        "NodeExecStats",
        node_name=name,
        all_start_micros=1_700_000_000_000_000,
        op_start_rel_micros=1,
        op_end_rel_nanos=9000,
        all_end_rel_micros=10,
        scheduled_micros=1_699_999_999_999_999,
        timeline_label=name + b" = Op()",
        thread_id=3,
        memory=[message("AllocatorMemoryUsed", total_bytes=5, peak_bytes=6, live_bytes=7)],
        output=[message("NodeOutput", slot=0, tensor_description=described)],
        memory_stats=message("MemoryStats", temp_memory_size=1, persistent_memory_size=2),
    )


def _records() -> list[bytes]:
    """Events of every kind."""
    nodes = [
        Field(1, DELIMITED, Field(1, DELIMITED, name).pack() + Field(2, DELIMITED, b"Op").pack() + inputs)
        for name, inputs in (
            (b"a", b""),
            (b"b", Field(3, DELIMITED, b"a").pack() + Field(3, DELIMITED, b"^a:1").pack()),
        )
    ]
    graph = b"".join(node.pack() for node in nodes)
    devices = [message("DeviceStepStats", device=b"/gpu:0", node_stats=[_node(b"a"), _node(b"b")])]
    run = message("RunMetadata", step_stats=message("StepStats", dev_stats=devices)).SerializeToString()
    function = Field(4, DELIMITED, Field(2, DELIMITED, graph).pack() + Field(1, DELIMITED, graph).pack()).pack()
    exported = [
        value(f"trace{n}", tensor=tensor(files.STRING, string_val=[data]), plugin=plugin)
        for n, (plugin, data) in enumerate(
            (("graph_run_metadata", run), ("graph_run_metadata_graph", run + function), ("graph_run_metadata", b""))
        )
    ]
    numbers = {files.FLOAT: {"float_val": [1]}, files.INT64: {"int64_val": [-5]}, files.HALF: {"half_val": [15360]}}
    tensors = [value(f"x{d}", tensor=tensor(d, [1], **v), plugin="scalars") for d, v in numbers.items()]
    content = value("y", tensor=tensor(files.DOUBLE, tensor_content=bytes(8)), data_class=1)
    text = value("note", tensor=tensor(files.STRING, [2], string_val=[b"one", b"two"]), plugin="text")
    return [
        files.VERSION,
        event(source_metadata=message("SourceMetadata", writer=b"writer")),
        event(graph_def=graph),
        event(meta_graph_def=Field(2, DELIMITED, graph).pack()),
        summary(value("a", simple_value=1), value("b", simple_value=2), step=1),
        summary(*tensors, content, text, step=2),
        summary(value("i", image=b"png"), value("h", histogram=b""), value("_hparams_/x", plugin="hparams")),
        event(9, tagged_run_metadata=message("TaggedRunMetadata", tag=b"step 9", run_metadata=run)),
        summary(*exported, step=3),
        event(session_log=message("SessionLog", status=1)),
        summary(value("a", simple_value=3), step=2),
    ]


RECORDS = _records()
WHOLE = b"".join(framed(r) for r in RECORDS)


def unharmed() -> bytes:
    return WHOLE


def made(case: int) -> tuple[str, bytes]:
    dice = random.Random(case)
    change = dice.choice((_bytes, _messages, _messages, _messages, _cut, _sizes, _deep, _many, _several, _shuffled))
    return change.__name__.lstrip("_"), change(dice)


def _bytes(dice: random.Random) -> bytes:
    return of_bytes(WHOLE, dice)


def _messages(dice: random.Random) -> bytes:
    """Change some events; frames are right."""
    records = list(RECORDS)
    for _ in range(dice.choice((1, 1, 2, 5))):
        nth = dice.randrange(len(records))
        records[nth] = of_message(records[nth], dice)
    return b"".join(framed(r) for r in records)


def _cut(dice: random.Random) -> bytes:
    return WHOLE[: dice.randrange(len(WHOLE))]


def _sizes(dice: random.Random) -> bytes:
    """Let the size of a record lie, under a sum that is right."""
    at = sum(16 + len(r) for r in RECORDS[: dice.randrange(len(RECORDS))])
    size = struct.pack("<Q", edge(dice) & (1 << 64) - 1)
    return WHOLE[:at] + size + struct.pack("<I", compute_masked_crc32c(size)) + WHOLE[at + 12 :]


def _deep(dice: random.Random) -> bytes:
    """Nest a message in itself."""
    inner = dice.choice(RECORDS)
    for _ in range(dice.choice((10, 100, 2000))):
        inner = Field(dice.choice((1, 2, 4, 5, 8, 9)), DELIMITED, inner).pack()
    return b"".join(framed(r) for r in (*RECORDS, inner, event(summary=None) + Field(5, DELIMITED, inner).pack()))


def _many(dice: random.Random) -> bytes:
    """Repeat the innermost parts of events very often: as small as they can be, and there are many of them."""
    part = Field(1, DELIMITED, dice.choice((b"", b"\x0a\0", b"\x15\0\0\0\0", b"\x42\0"))).pack()
    number = dice.choice((5, 4, 8, 9))
    body = part * dice.choice((10, 1000, 20_000))
    if number == 8:
        stats = Field(
            1, DELIMITED, Field(1, DELIMITED, Field(2, DELIMITED, b"").pack() * (len(body) // 2)).pack()
        ).pack()
        body = Field(2, DELIMITED, stats).pack()
    return b"".join(framed(r) for r in (*RECORDS, Field(number, DELIMITED, body).pack()))


def _several(dice: random.Random) -> bytes:
    """Repeat records."""
    return b"".join(framed(r) * dice.choice((1, 1, 1, 50)) for r in RECORDS)


def _shuffled(dice: random.Random) -> bytes:
    """Put parts of events into others, in another order."""
    records = dice.sample(RECORDS, len(RECORDS))
    parts = [p for r in records for p in fields(r) or ()]
    return b"".join(framed(b"".join(p.pack() for p in dice.sample(parts, 3))) for _ in records)


assert frames(WHOLE) == RECORDS
