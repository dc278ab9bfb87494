"""Mutated logs of collectives: pickles and JSON of flight recorders, and JSON lines."""

from __future__ import annotations

import random

from tests.fuzz.changes import of_bytes
from tests.readers.test_nccl import DUMPS, FIXTURES, LOGS, PICKLES

FORMAT, SUFFIX = "nccl", "_rank0"
FILES = [path.read_bytes() for path in (PICKLES[0], DUMPS[0], LOGS[0], FIXTURES / "events.jsonl")]
TOKENS = (b"9" * 25, b'"', b"}", b"[", b"null", b"-1", b"\xff", b'{"', b"1e999", b"[" * 300)


def some_bytes(file: bytes, dice: random.Random) -> bytes:
    return of_bytes(file, dice)


def truncated(file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def tokens(file: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.choice((1, 3, 20))):
        at = dice.randrange(len(file))
        file = file[:at] + dice.choice(TOKENS) + file[at + dice.choice((0, 1, 9)) :]
    return file


def repeated(file: bytes, dice: random.Random) -> bytes:
    start = dice.randrange(len(file))
    return file[:start] + file[start : start + dice.randrange(1, 200)] * dice.choice((2, 50)) + file[start:]


def made(case: int) -> tuple[str, bytes]:
    dice = random.Random(case)
    mutate = (some_bytes, tokens, truncated, tokens, repeated)[case // len(FILES) % 5]
    return mutate.__name__, mutate(FILES[case % len(FILES)], dice)


def unharmed() -> bytes:
    return FILES[0]
