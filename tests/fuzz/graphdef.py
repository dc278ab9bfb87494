"""Mutated graphs, binary and text."""

from __future__ import annotations

import random
import re

from tests.fuzz.changes import edge, of_bytes, of_message, varint
from tests.readers.graphdef_oracle import FIXTURES

FORMAT, SUFFIX = "graphdef", ".pb"
NAMES = ("network.pb", "saved_model.pb", "network.pbtxt")
FILES = {name: (FIXTURES / name).read_bytes() for name in NAMES}
BINARY = NAMES[:2]
FIRST = 24
"""Bytes by which a file is recognized: every other case keeps them."""
_NUMBER = re.compile(rb": -?[0-9][0-9.]*")
_WORD = re.compile(rb"[a-z_]+(?= \{|:)")


def whole_file(file: bytes, dice: random.Random) -> bytes:
    return of_bytes(file, dice)


def body(file: bytes, dice: random.Random) -> bytes:
    return file[:FIRST] + of_bytes(file[FIRST:], dice)


def truncated(file: bytes, dice: random.Random) -> bytes:
    return file[: dice.randrange(len(file))]


def messages(file: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.choice((1, 1, 4))):
        file = of_message(file, dice)
    return file


def nested(file: bytes, dice: random.Random) -> bytes:
    """Add a node whose attribute is a function with an attribute that is a function …"""
    value = b""
    for _ in range(dice.choice((5, 98, 102, 1000))):
        entry = b"\x0a\x01k\x12" + varint(len(value)) + value
        function = b"\x0a\x01f\x12" + varint(len(entry)) + entry
        value = b"\x52" + varint(len(function)) + function
    entry = b"\x0a\x01k\x12" + varint(len(value)) + value
    node = b"\x0a\x01n\x12\x02Op\x2a" + varint(len(entry)) + entry
    return file + b"\x0a" + varint(len(node)) + node


def many(file: bytes, dice: random.Random) -> bytes:
    """Add many empty parts: nodes, libraries, functions, inputs, attributes, tensors of a list."""
    number = dice.choice((70, 5000, 200_000))
    parts = {
        "nodes": b"\x0a\x00" * number,
        "libraries": b"\x12\x00" * number,
        "functions": b"\x12" + varint(2 * number) + b"\x0a\x00" * number,
        "inputs": b"\x0a" + varint(2 * number) + b"\x1a\x00" * number,
        "attributes": b"\x0a" + varint(2 * number) + b"\x2a\x00" * number,
    }
    return file + parts[dice.choice(list(parts))]


def lies(file: bytes, dice: random.Random) -> bytes:
    """Put a size or a number on the edge somewhere, of whatever length."""
    at = dice.randrange(FIRST, len(file))
    return file[:at] + varint(edge(dice), padded=dice.choice((0, 0, 3, 9))) + file[at + dice.choice((0, 1, 2)) :]


def numbers(file: bytes, dice: random.Random) -> bytes:
    """Change numbers of a text."""
    found = ("-1", "0", "9" * 30, "1e400", "nan", "-inf", "0x1F", "'x'", "{}", "DT_NEWER", "true", str(edge(dice)))
    return _NUMBER.sub(lambda m: m[0] if dice.random() < 0.9 else b": " + dice.choice(found).encode(), file)


def words(file: bytes, dice: random.Random) -> bytes:
    """Change fields of a text."""
    others = (b"node", b"attr", b"library", b"value", b"tensor", b"func", b"unknown", b"[a.b]", b"x: 1 y", b"")
    return _WORD.sub(lambda m: m[0] if dice.random() < 0.97 else dice.choice(others), file)


def braces(file: bytes, dice: random.Random) -> bytes:
    """Open what is not closed, close what is not open, nest deeply."""
    at = dice.randrange(len(file))
    deep = b"attr { key: 'k' value { func { name: 'f' " * dice.choice((40, 90, 2000))
    return file[:at] + dice.choice((b"{", b"}", b"<", b"[", b"'", b"#", b"\\", b"\xff\0", deep)) + file[at:]


def made(case: int) -> tuple[str, bytes]:
    name = NAMES[case % len(NAMES)]
    ways = (whole_file, body, truncated, messages, messages, lies, nested, many)
    if name not in BINARY:
        ways = (whole_file, body, truncated, numbers, words, braces, numbers, words)
    mutate = ways[case // len(NAMES) % len(ways)]
    return f"{name}, {mutate.__name__}", mutate(FILES[name], random.Random(case))


def unharmed() -> bytes:
    return FILES[NAMES[0]]
