"""Mutated Nsight Compute reports end in an error of ours or in a trace, quickly and within bounds.

These are some cases for coverage; ``tests/fuzz`` runs many more.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.builders.ncu_rep import FIXTURES, Block, made, report, sized, take_apart
from tests.conftest import ALL
from tests.readers.test_nsys_rep_fuzz import changed, peak_bytes
from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.readers.ncu_rep.capture import NcuReportCapture
from tracekit.readers.ncu_rep.container import message_class
from tracekit.registry.source import Source

CASES = 150 if ALL else 40
SECONDS, BYTES = 2.0, 1 << 30
SIZES = (0, 1, 2, 127, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)

Mutation = Callable[[bytes, random.Random], bytes]


def whole_file(file: bytes, dice: random.Random) -> bytes:
    return changed(file, dice)


def truncated(file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def cut_out(file: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(file))
    return file[:at] + file[at + dice.randrange(1, 1000) :]


def head(file: bytes, dice: random.Random) -> bytes:
    return changed(file[:400], dice) + file[400:]


def headers(file: bytes, dice: random.Random) -> bytes:
    """Change one header of a block; the counts and the size stay right, and the file whole."""
    blocks = take_apart(file)
    at = dice.randrange(len(blocks))
    session = message_class("BlockHeader").FromString(blocks[at].header)
    try:
        header = message_class("BlockHeader").FromString(changed(session.SerializeToString(), dice, keep_size=True))
    except Exception:  # noqa: BLE001 - no message at all any more
        header = session
    blocks[at] = replace(blocks[at], header=header.SerializeToString())
    return report(*blocks)


def messages(file: bytes, dice: random.Random, *, keep_size: bool = False) -> bytes:
    """Change one message; its size is right."""
    blocks = take_apart(file)
    at = dice.choice([i for i, b in enumerate(blocks) if b.messages])
    which = dice.randrange(len(blocks[at].messages))
    parts = [
        (k, changed(m, dice, keep_size=keep_size) if i == which else m) for i, (k, m) in enumerate(blocks[at].messages)
    ]
    blocks[at] = replace(blocks[at], messages=parts)
    return report(*blocks)


def values(file: bytes, dice: random.Random) -> bytes:
    return messages(file, dice, keep_size=True)


def inner(file: bytes, dice: random.Random) -> bytes:
    """Change one metric, rule or NVTX state of one kernel result; everything around it is right."""
    blocks = take_apart(file)
    kernels = [(i, j) for i, b in enumerate(blocks) for j, (k, _) in enumerate(b.messages) if k == "kernels"]
    if not kernels:
        return messages(file, dice)
    i, j = dice.choice(kernels)
    result = message_class("KernelResult").FromString(blocks[i].messages[j][1])
    field = dice.choice(("metrics", "metrics", "rules", "nvtx"))
    found = getattr(result, field)
    if field == "nvtx":
        result.nvtx = changed(found, dice)
    elif found:
        which = dice.randrange(len(found))
        found[which] = changed(found[which], dice)
    parts = list(blocks[i].messages)
    parts[j] = ("kernels", result.SerializeToString())
    blocks[i] = replace(blocks[i], messages=parts)
    return report(*blocks)


def sizes(file: bytes, dice: random.Random) -> bytes:
    """Lie about counts and sizes."""
    fields = {
        c: dice.choice(SIZES)
        for c in ("sources", "kernels", "ranges", "graphs", "payload_bytes")
        if dice.random() < 0.5
    }
    lie = sized(made("BlockHeader", **fields), size=dice.choice((None, None, None, *SIZES)))
    return file[: dice.choice((10, len(file)))] + lie + file[dice.randrange(10, len(file)) :]


def many(file: bytes, dice: random.Random) -> bytes:
    """Very many of the smallest things."""
    tiny = dice.choice((b"\x6a\x00", b"\x6a\x02\x08\x00", b"\x9a\x01\x00", b"\x8a\x01\x00", b"\xaa\x01\x02\x12\x00"))
    small = made("KernelResult", thread_id=1) + tiny * dice.choice((1000, 500_000))
    return report(*take_apart(file)[:3], Block(b"", [("kernels", small)] * dice.choice((1, 3))))


MUTATIONS: tuple[Mutation, ...] = (
    whole_file, truncated, cut_out, head, headers, messages, values, values, inner, inner, sizes, many,
)  # fmt: skip


def outcome(path: Path) -> str:
    """Read everything; say how it ended."""
    try:
        capture = NcuReportCapture(Source(path))
        for name in capture.names():
            table = schemas.table(name)
            schemas.conform(capture.read(name, table.names), table, path=path).validate(full=True)
    except TracekitError:
        return "error"
    return "trace"


@pytest.mark.slow
def test_every_mutation_ends_well(tmp_path: Path) -> None:
    files = [p.read_bytes() for p in FIXTURES]
    path = tmp_path / "case.ncu-rep"
    before, ended = peak_bytes(), {"error": 0, "trace": 0}
    for case in range(CASES):
        dice = random.Random(case)
        file, mutate = files[case % len(files)], MUTATIONS[case // len(files) % len(MUTATIONS)]
        path.write_bytes(mutate(file, dice))
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ended[outcome(path)] += 1
        assert time.process_time() - began < SECONDS, f"case {case}, {mutate.__name__}"
    assert peak_bytes() - before < BYTES
    assert min(ended.values()) > CASES // 10
