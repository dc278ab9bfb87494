"""Mutated traces end in an error of ours or in a trace, quickly and within bounds; more of them in ``tests/fuzz``."""

from __future__ import annotations

import gzip
import random
import re
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.builders.kineto import TRACE, op, trace
from tests.conftest import ALL
from tests.readers.test_nsys_rep_fuzz import changed, peak_bytes
from tracekit import schemas
from tracekit.errors import CorruptTraceError, TracekitError
from tracekit.readers.kineto.capture import read_capture
from tracekit.registry.source import Source

CASES = 60 if ALL else 24
SECONDS, BYTES = 2.0, 1 << 30
NUMBERS = (
    "-1",
    "0",
    "1e400",
    "-1e-400",
    "9" * 30,
    "9223372036854775807",
    "-9223372036854775809",
    "2147483648",
    "NaN",
    "1.",
    ".5",
)
NUMBERS += ("9" * 4000, "18446744073709551615", "1e18", '"x"', "null", "[]", "{}", "[[[]]]", "4294967296")
PIECES = (
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\0",
    b"\xff",
    b'"}',
    b'":',
    b"},{",
    b"\\u",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
)

Mutation = Callable[[bytes, random.Random], bytes]
_NUMBER = re.compile(rb":\s?-?[0-9][0-9.]*")
_TEXT = re.compile(rb':"[^"]*"')


def bytes_of(text: bytes, dice: random.Random) -> bytes:
    return changed(text, dice)


def cut(text: bytes, dice: random.Random) -> bytes:
    return text[: dice.randrange(len(text))]


def cut_out(text: bytes, dice: random.Random) -> bytes:
    at = dice.randrange(len(text))
    return text[:at] + text[at + dice.randrange(1, 3000) :]


def marks(text: bytes, dice: random.Random) -> bytes:
    """Put what means something in JSON where it does not belong."""
    for _ in range(dice.choice((1, 3, 30))):
        at = dice.randrange(len(text))
        text = text[:at] + dice.choice(PIECES) + text[at + dice.choice((0, 1)) :]
    return text


def replaced(pattern: re.Pattern[bytes], by: Callable[[], bytes], text: bytes, dice: random.Random) -> bytes:
    odds = dice.choice((0.001, 0.05, 1.0))
    return pattern.sub(lambda m: b":" + by() if dice.random() < odds else m[0], text)


def numbers(text: bytes, dice: random.Random) -> bytes:
    return replaced(_NUMBER, lambda: dice.choice(NUMBERS).encode(), text, dice)


def texts(text: bytes, dice: random.Random) -> bytes:
    made = (b'""', b'"kernel"', b'"\\ud800"', b'"' + b"n" * 300 + b'"', b"5", b'"\xff\xfe"', b'"M"', b'"thread_name"')
    return replaced(_TEXT, lambda: dice.choice(made), text, dice)


def exported(text: bytes, dice: random.Random) -> bytes:
    """Let it seem to be of tracekit."""
    head = b'"otherData":{"producer":"tracekit","shift_ns":"%d"},"traceEvents":' % dice.randrange(1 << 62)
    ids = (b'"kernel_id"', b'"range_id"', b'"api_call_id"', b'"mark_id"', b'"memset_id"', b'"payload"', b'"open"')
    made = text.replace(b'"traceEvents":', head, 1)
    return re.sub(rb'"(?:External id|correlation|Ev Idx)"', lambda _: dice.choice(ids), made)


def deep(text: bytes, dice: random.Random) -> bytes:
    depth = dice.choice((1000, 100_000, 3_000_000))
    opened, closed = dice.choice(((b"[", b"]"), (b'{"a":', b"}")))
    nested = opened * depth + b"1" + closed * dice.choice((depth, depth - 1, 0))
    return re.sub(rb'"(Ev Idx|deviceProperties)":[^,}]*', lambda m: b'"%b":%b' % (m[1], nested), text, count=1)


def repeated(text: bytes, dice: random.Random) -> bytes:
    """Very many of the smallest things."""
    tiny = dice.choice(
        (b"{}", b"1", b"[", b'"', b'{"ph":"X"}', b'{"ph":"X","cat":"kernel","ts":1,"dur":1}', b"},{", b" ", b"\\")
    )
    many = b",".join([tiny] * dice.choice((1000, 300_000)))
    return text[:2000] + many + text[2000:]


MUTATIONS: tuple[Mutation, ...] = (
    bytes_of, bytes_of, cut, cut_out, marks, marks, numbers, texts, exported, deep, repeated,
)  # fmt: skip


def packed(text: bytes, dice: random.Random) -> bytes:
    """Pack some, and harm some of the packed."""
    data = gzip.compress(text, 1) if dice.random() < 0.2 else text
    return changed(data, dice) if data is not text and dice.random() < 0.5 else data


def outcome(path: Path) -> str:
    """Read everything; say how it ended."""
    try:
        capture = read_capture(Source(path))
        for name in capture.names():
            table = schemas.table(name)
            made = schemas.conform(capture.read(name, table.names), table, path=path)
            made.validate(full=True)
            assert made.num_rows == capture.count(name)
    except TracekitError:
        return "error"
    return "trace"


def ended(path: Path) -> str:
    """Read a file as a warning may be given; it must not take long."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = outcome(path)
    took = time.process_time() - began
    assert took < SECONDS, (path.name, took)
    return result


@pytest.mark.slow
def test_every_mutation_ends_well(tmp_path: Path) -> None:
    whole = gzip.decompress(TRACE.read_bytes())
    before, found = peak_bytes(), {"error": 0, "trace": 0}
    path = tmp_path / "case.json"
    for case in range(CASES):
        dice = random.Random(case)
        mutate = MUTATIONS[case % len(MUTATIONS)]
        path.write_bytes(packed(mutate(whole, dice), dice))
        found[ended(path)] += 1
    assert peak_bytes() - before < BYTES
    assert found["trace"] > CASES // 4


def bomb(path: Path, inside: bytes, times: int, ends: bytes = b"") -> Path:
    """A small file that unpacks to a big one."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    with path.open("wb") as file:
        file.write(packer.compress(trace([]).encode().removesuffix(b"]}") + op().encode() + b","))
        for _ in range(times):
            file.write(packer.compress(inside))
        file.write(packer.compress(ends) + packer.flush())
    return path


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize(
    "inside",
    [b" " * (1 << 20), (op() + ",").encode() * 10_000, b"[" * (1 << 20), b'{"a":"' + b"x" * (1 << 20)],
    ids=["white space", "events", "depth", "text"],
)
def test_bombs_do_not_go_off(tmp_path: Path, inside: bytes) -> None:
    path = bomb(tmp_path / "bomb.json.gz", inside, (1 << 28) // len(inside))
    before = peak_bytes()
    began = time.process_time()
    with pytest.raises(CorruptTraceError):
        read_capture(Source(path))
    assert time.process_time() - began < SECONDS
    assert peak_bytes() - before < BYTES


def meeting(count: int) -> list[str]:
    """Different texts of eight letters whose hashes end in the same 16 bits, as the sandbox computes them."""
    numbers = np.arange(10_000_000, 10_000_000 + 65_536 * count, dtype=np.uint64)
    digits = numbers[:, None] // 10 ** np.arange(7, -1, -1, dtype=np.uint64) % 10 + ord("0")
    words = digits.astype(np.uint8).view("<u8")[:, 0]

    def mixed(hashes: np.ndarray, word: np.ndarray | int) -> np.ndarray:
        made = (hashes ^ word) * np.uint64(0x9E3779B97F4A7C15)
        return made ^ (made >> np.uint64(29))

    hashes = mixed(mixed(np.full(len(words), 8, np.uint64), words), np.uint64(0))
    ends = (hashes ^ (hashes >> np.uint64(32))) & np.uint64(0xFFFF)
    fullest = np.bincount(ends.astype(np.int64)).argmax()
    return [str(n) for n in numbers[ends == fullest]]


@pytest.mark.thorough
def test_texts_whose_hashes_meet(tmp_path: Path) -> None:
    """They are told apart, and a search for one ends after a few tries."""
    alike = meeting(64)
    assert len(alike) > 64
    names = alike * 1000
    path = tmp_path / "names.json"
    path.write_text(trace(op(name) for name in names))
    assert ended(path) == "trace"
    assert read_capture(Source(path)).read("nvtx_ranges", ["name"])["name"].to_pylist() == names


@pytest.mark.thorough
def test_many_different_texts(tmp_path: Path) -> None:
    names = [f"{i:x}" for i in range(150_000)]
    path = tmp_path / "names.json"
    path.write_text(trace(op(name) for name in names))
    assert ended(path) == "trace"
    assert read_capture(Source(path)).read("nvtx_ranges", ["name"])["name"].to_pylist() == names
