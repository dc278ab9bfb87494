"""Mutated JSON files of rocprofv3."""

from __future__ import annotations

import gzip
import json
import random
import re
from pathlib import Path

from tests.fuzz.changes import edge, of_bytes

FORMAT, SUFFIX = "rocprofv3-json", ".json"
DATA = (Path(__file__).parents[2] / "fixtures" / "rocm" / "train_results.json").read_bytes()
FIRST = len(b'{"rocprofiler-sdk-tool":')
_NUMBER, _VALUE = re.compile(rb"(?<=:)\d+"), re.compile(rb'(?<=:)(?:\d+|"[^"]{0,40}"|\[\]|\{\})')
_KEY = re.compile(rb'"\w+"(?=:)')
VALUES = (
    b"null",
    b"true",
    b"-1",
    b"1e400",
    b"[]",
    b"{}",
    b'""',
    b'"\\ud800"',
    b"[[[[1]]]]",
    b'{"handle":{"handle":1}}',
)


def of_matches(pattern: re.Pattern[bytes], file: bytes, dice: random.Random, *new: bytes) -> bytes:
    """Replace some of the places where a pattern matches, or all of them."""
    places = [*pattern.finditer(file, FIRST)]
    for place in sorted(dice.sample(places, dice.choice((1, 3, len(places)))), key=re.Match.start, reverse=True):
        file = file[: place.start()] + dice.choice(new) + file[place.end() :]
    return file


def body(file: bytes, dice: random.Random) -> bytes:
    return file[:FIRST] + of_bytes(file[FIRST:], dice)


def truncated(file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def numbers(file: bytes, dice: random.Random) -> bytes:
    return of_matches(_NUMBER, file, dice, *(str(edge(dice)).encode() for _ in range(3)))


def values(file: bytes, dice: random.Random) -> bytes:
    return of_matches(_VALUE, file, dice, *VALUES)


def keys(file: bytes, dice: random.Random) -> bytes:
    return of_matches(_KEY, file, dice, *_KEY.findall(file)[: dice.choice((1, 50, 500))])


def parts(file: bytes, dice: random.Random) -> bytes:
    """Drop, repeat or exchange whole members."""
    tool = json.loads(file)["rocprofiler-sdk-tool"][0]
    owner = dice.choice([tool, tool["buffer_records"], tool["strings"], tool["callback_records"]])
    one, other = dice.choice([*owner]), dice.choice([*owner])
    owner[one] = dice.choice([None, owner[other], [owner[one]], [], {}, [[]], [{}] * 1000, "x" * 5000])
    return json.dumps({"rocprofiler-sdk-tool": dice.choice([[tool], [tool] * 40, tool])}).encode()


def many(file: bytes, dice: random.Random) -> bytes:
    """Add many small parts: sections, records, members, brackets."""
    number = dice.choice((70, 5000, 200_000))
    part = dice.choice((b"{},", b'{"kind":1},', b"[],", b"[", b'{"a":', b'{"buffer_records":{"hip_api":[{}]}},'))
    inner = dice.choice((b"[", b'[{"buffer_records":{"kernel_dispatch":[', b'[{"agents":['))
    return file[:FIRST] + inner + part * number


def zipped(file: bytes, dice: random.Random) -> bytes:
    return of_bytes(gzip.compress(values(file, dice), mtime=0), dice) if dice.random() < 0.5 else gzip.compress(file)


def made(case: int) -> tuple[str, bytes]:
    ways = (body, truncated, numbers, values, keys, parts, many, zipped)
    mutate = ways[case % len(ways)]
    return mutate.__name__, mutate(DATA, random.Random(case))


def unharmed() -> bytes:
    return DATA
