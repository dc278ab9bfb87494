"""Mutated reports end in an error of ours or in a trace, quickly and within bounds.

These are some cases for coverage; ``tests/fuzz`` runs many more.
"""

from __future__ import annotations

import random
import resource
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.builders.nsys_rep import CAPTURES, Parts, packed, take_apart, varint
from tests.conftest import ALL
from tracekit import schemas
from tracekit.errors import TracekitError
from tracekit.readers.nsys_rep.report import NsysReportCapture
from tracekit.registry.source import Source
from tracekit.registry.tables import read_chunks

NAMES = ("cpu_only", "empty", "graph_node", "nvtx_features", "osrt_libs", "gpu_metrics", "omp", "um", "mpi_rank0")
CASES = range(0, 150, 1 if ALL else 8)
SECONDS, BYTES = 2.0, 1 << 30
pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="no captures beside the checkout")

Mutation = Callable[[Parts, bytes, random.Random], bytes]


def changed(data: bytes, dice: random.Random, *, keep_size: bool = False) -> bytes:
    """Change some bytes: flip, replace, put numbers on the edge, cut out, repeat."""
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(out) + 1)
        piece = out[at : at + dice.choice((1, 2, 10, 200))]
        edge = varint(dice.choice((0, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1, dice.randrange(1 << 40))))
        way = dice.randrange(2 if keep_size else 5)
        if way == 0 and piece:
            out[at] ^= 1 << dice.randrange(8)
        elif way == 1:
            out[at : at + 1] = bytes([dice.randrange(256)] * len(piece[:1]))
        elif way == 2:
            out[at : at + len(edge)] = edge
        elif way == 3:
            del out[at : at + len(piece)]
        elif way == 4:
            out[at:at] = piece
    return bytes(out)


def one_of(parts: list[bytes], dice: random.Random, *, keep_size: bool = False) -> list[bytes]:
    at = dice.randrange(len(parts))
    return [changed(p, dice, keep_size=keep_size) if i == at else p for i, p in enumerate(parts)]


def whole_file(_: Parts, file: bytes, dice: random.Random) -> bytes:
    return changed(file, dice)


def truncated(_: Parts, file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def cut_out(_: Parts, file: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(file))
    return file[:at] + file[at + dice.randrange(1, 1000) :]


def event_values(parts: Parts, _: bytes, dice: random.Random) -> bytes:
    return replace(parts, blocks=one_of(list(parts.blocks), dice, keep_size=True)).pack()


def event_bytes(parts: Parts, _: bytes, dice: random.Random) -> bytes:
    return replace(parts, blocks=one_of(list(parts.blocks), dice)).pack()


def string_bytes(parts: Parts, _: bytes, dice: random.Random) -> bytes:
    return replace(parts, strings=one_of(list(parts.strings), dice)).pack()


def headers(parts: Parts, _: bytes, dice: random.Random) -> bytes:
    header, stream = one_of([parts.header, parts.stream or b""], dice)
    return replace(parts, header=header, stream=stream, offsets=dice.random() < 0.9).pack()


def machine(parts: Parts, _: bytes, dice: random.Random) -> bytes:
    return replace(parts, rest=one_of(list(parts.rest), dice, keep_size=dice.random() < 0.5)).pack()


def facts(parts: Parts, _: bytes, dice: random.Random) -> bytes:
    return replace(parts, sections={n: changed(d, dice) for n, d in parts.sections.items()}).pack()


def sizes(parts: Parts, _: bytes, dice: random.Random) -> bytes:
    lies = (None, 1, 100, 1 << 20, 1 << 25, 1 << 40, (1 << 64) - 1)
    blocks = [packed(b, size=dice.choice(lies)) for b in parts.blocks] * dice.choice((1, 2, 5))
    return parts.pack(blocks=blocks)


def compressed(parts: Parts, _: bytes, dice: random.Random) -> bytes:
    return parts.pack(blocks=[changed(packed(b), dice, keep_size=True) for b in parts.blocks])


MUTATIONS: tuple[Mutation, ...] = (
    whole_file, truncated, cut_out, event_values, event_values, event_bytes, string_bytes, headers, machine, facts,
    sizes, compressed,
)  # fmt: skip


def outcome(path: Path) -> str:
    """Read everything; say how it ended."""
    try:
        capture = NsysReportCapture(Source(path))
        for name, schema in schemas.tables().items():
            read_chunks(capture, name, schema.names)
        assert all(u.count > 0 for u in capture.undecoded.values())
    except TracekitError:
        return "error"
    return "trace"


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.slow
def test_every_mutation_ends_well(tmp_path: Path) -> None:
    files = {name: (CAPTURES / f"{name}.nsys-rep").read_bytes() for name in NAMES}
    reports = {name: take_apart(CAPTURES / f"{name}.nsys-rep") for name in NAMES}
    path = tmp_path / "case.nsys-rep"
    before, ended = peak_bytes(), {"error": 0, "trace": 0}
    for case in CASES:
        dice = random.Random(case)
        name, mutate = NAMES[case % len(NAMES)], MUTATIONS[case // len(NAMES) % len(MUTATIONS)]
        path.write_bytes(mutate(reports[name], files[name], dice))
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ended[outcome(path)] += 1
        assert time.process_time() - began < SECONDS, f"case {case}, {name}, {mutate.__name__}"
    assert peak_bytes() - before < BYTES
    assert min(ended.values()) > len(CASES) // 10
