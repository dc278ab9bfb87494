"""What Perfetto traces hold of people and machines, in the fields in which Perfetto puts it, is gone from a copy."""

from __future__ import annotations

import gzip
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import tracekit as tk
from tests.builders.nsys_rep import message
from tests.conftest import FIXTURES
from tests.helpers import number_pseudonyms
from tracekit.errors import CorruptTraceError, TracekitError, TracekitWarning
from tracekit.readers.common.protobuf.decoding import Message

Field = tuple[int, object]
CLEARED = (13, 1)


def packet(*fields: Field) -> Field:
    return 1, message((10, 1), *fields)


def event(*annotations: tuple[Field, ...], name: str = "gemm") -> Field:
    return packet((8, 5), (11, message((9, 3), (11, 5), (23, name), *((4, message(*a)) for a in annotations))))


def compressed(*packets: Field) -> Field:
    return 1, message((50, zlib.compress(message(*packets))))


def written(folder: Path, *packets: Field, name: str = "made.pftrace") -> Path:
    path = folder / name
    data = message(packet(CLEARED, (6, message((1, message((1, 6), (2, 1)))))), *packets)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def contents(path: Path) -> bytes:
    """The bytes of a trace, also of compressed packets."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    packets = Message(memoryview(data)).messages(1)
    return data + b"".join(zlib.decompress(bytes(part)) for p in packets for part in p.bytes_values(50))


NAMES = (3, message((1, 7), (2, "username"))), (3, message((1, 8), (2, "secret")))
VALUES = tuple((29, message((1, i), (2, text))) for i, text in ((70, "zqcara"), (71, "zqshh"), (72, "public")))
USES = event(((1, 7), (17, 70)), ((1, 8), (17, 71)), ((10, "n"), (17, 72)), ((10, "by"), (6, "run of zqcara")))
NESTED = message((1, 1), (2, "user"), (3, message((8, "zqbill"))))
PROCESS = message((1, 5), (3, "/data/zqfalcon/solver"), (3, "--key"), (3, "zqargument"))
VARIABLE = message((10, "A"), (6, "zqvalue1"))
NUMBER = "\xf1\xe2\xc5\x8b\x07"
"""The number 0x71717171 as a varint."""
GPU = message((1, "H100"), (5, b"ABCDEFGHIJKLMNOP"))
COMMAND, SYSTEM = message((1, "command_line"), (2, "./a --zqflag")), message((1, "os"), (2, "Linux"))
CASES: dict[str, tuple[tuple[Field, ...], tuple[str, ...], tuple[str, ...]]] = {
    "annotations": (
        (
            event(
                ((10, "password"), (6, "zqpassword")),
                ((10, "hostname"), (6, "zqhost7")),
                ((10, "env"), (11, VARIABLE), (11, message((10, "B"), (12, message((6, "zqvalue2")))))),
                ((10, "config"), (11, message((10, "api_key"), (6, "zqkey1")))),
                ((10, "json"), (9, '{"password": "zqpassword2"}')),
                ((10, "old"), (8, NESTED)),
            ),
            event(((10, "note"), (6, "zqhost7 of zqbill"))),
        ),
        ("zqpassword", "zqhost7", "zqvalue1", "zqvalue2", "zqkey1", "zqbill"),
        ("gemm", "note", "config"),
    ),
    "numbers": ((event(((10, "api_key"), (3, 0x71717171)), ((10, "count"), (3, 5))),), (NUMBER,), ("count",)),
    "interned": ((packet((12, message(*NAMES, *VALUES))), USES), ("zqcara", "zqshh"), ("gemm", "public")),
    "interned later": (
        (packet((12, message(*NAMES))), packet((12, message(*VALUES))), USES),
        ("zqcara", "zqshh"),
        ("gemm", "public"),
    ),
    "process tree": ((packet((2, message((1, PROCESS)))),), ("zqfalcon", "zqargument"), ("solver",)),
    "process": (
        (packet((43, message((1, 5), (2, "a.out"), (2, "zqargument"), (6, "/data/zqfalcon/solver")))),),
        ("zqfalcon", "zqargument"),
        ("solver", "a.out"),
    ),
    "track of process": (
        (packet((60, message((1, 9), (3, message((1, 5), (2, "a.out"), (2, "zqargument"), (6, "solver")))))),),
        ("zqargument",),
        ("solver", "a.out"),
    ),
    "machine": (
        (packet((45, message((17, "zqmachine1")))), event(((10, "n"), (6, "zqmachine1")))),
        ("zqmachine1",),
        (),
    ),
    "id of the trace": ((packet((89, message((1, 0x71717171), (2, 5)))),), (NUMBER,), ()),
    "id of a GPU": ((packet((128, message((1, GPU)))),), ("ABCDEFGH",), ("H100",)),
    "metadata": (
        (packet((5, message((2, COMMAND), (2, SYSTEM)))),),
        ("zqflag",),
        ("Linux", "command_line"),
    ),
    "parts of paths": (
        (packet((12, message((17, message((1, 1), (2, "zqfolder"))), (17, message((1, 2), (2, "libm.so")))))),),
        ("zqfolder",),
        ("libm.so",),
    ),
    "screenshot": ((packet((11, message((9, 3), (50, message((1, b"\xff\xd8zqjpeg")))))),), ("zqjpeg",), ()),
    "unknown fields": (
        (
            event(((10, "n"), (6, "USER=zqeva PATH=/bin HOME=/home/zqeva"))),
            packet((950, message((3, message((9, "zqeva at 10.1.2.3")))))),
            packet((8, 5), (11, message((9, 3), (999, "zqeva")))),
        ),
        ("zqeva", "10.1.2.3"),
        (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ["made.pftrace", "made.pftrace.gz"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("pack", [lambda *packets: packets, lambda *packets: (compressed(*packets),)])
def test_private_values_are_gone(case: str, name: str, pack: Callable[..., tuple[Field, ...]], tmp_path: Path) -> None:
    packets, private, public = CASES[case]
    path, out = written(tmp_path, *pack(*packets), name=name), tmp_path / f"copy-{name}"
    assert [text for text in private if text.encode("latin-1") not in contents(path)] == []
    counts = tk.redact(path, out)
    assert sum(counts.values())
    assert tk.unredacted(path) == counts
    assert [text for text in private if text.encode("latin-1") in contents(out)] == []
    assert [text for text in public if text.encode() not in contents(out)] == []
    assert not any(tk.unredacted(out).values())
    tk.redact(out, twice := tmp_path / f"twice-{name}")
    assert twice.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("name", ["events", "slices"])
def test_tables_stay(name: str, tmp_path: Path) -> None:
    tk.redact(path := FIXTURES / "perfetto" / f"{name}.pftrace", out := tmp_path / "copy.pftrace")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TracekitWarning)
        with tk.load(path) as before, tk.load(out) as after:
            for table in before.tables:
                mine, theirs = (number_pseudonyms(table, trace[table]) for trace in (before, after))
                assert mine.equals(theirs), table


def test_what_cannot_be_searched_is_refused(tmp_path: Path) -> None:
    zstd = written(tmp_path, packet((133, b"packed")), name="zstd.pftrace")
    with pytest.raises(TracekitError, match=r"compressed with zstd cannot be redacted\nHint: record the trace without"):
        tk.redact(zstd, tmp_path / "out")
    twice = written(tmp_path, compressed(compressed(event(((10, "n"), (6, "x"))))), name="twice.pftrace")
    with pytest.raises(CorruptTraceError, match="compressed packets contain compressed packets"):
        tk.redact(twice, tmp_path / "out")
    cut = tmp_path / "cut.pftrace"
    cut.write_bytes((FIXTURES / "perfetto" / "slices.pftrace").read_bytes()[:-3])
    with pytest.raises(CorruptTraceError, match="the last packet is incomplete"):
        tk.redact(cut, tmp_path / "out")
    assert not (tmp_path / "out").exists()
