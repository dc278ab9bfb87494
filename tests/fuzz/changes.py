"""Changes to bytes and to protobuf messages, whose sizes stay right or lie."""

from __future__ import annotations

import random
from typing import NamedTuple

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
WIDTHS = {FIXED64: 8, FIXED32: 4}
DEEPEST = 8


def varint(value: int, *, padded: int = 0) -> bytes:
    """Encode a number; ``padded`` octets more than it needs."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    if not padded:
        return bytes((*out, value))
    return bytes((*out, value | 0x80, *[0x80] * (padded - 1), 0))


class Field(NamedTuple):
    """A field of a message: number, kind, and its value without a size."""

    number: int
    kind: int
    value: bytes

    def pack(self, *, size: int | None = None) -> bytes:
        """Encode it; ``size`` may lie."""
        key = varint(self.number << 3 | self.kind)
        if self.kind != DELIMITED:
            return key + self.value
        return key + varint(len(self.value) if size is None else size) + self.value


def fields(data: bytes) -> list[Field] | None:
    """Take a message apart; None if it is none."""
    found, at = [], 0
    while at < len(data):
        key, at = _number(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            start = at
            _, at = _number(data, at)
        elif kind == DELIMITED:
            size, start = _number(data, at)
            at = start + size
        elif kind in WIDTHS:
            start, at = at, at + WIDTHS[kind]
        else:
            return None
        if not number or at > len(data):
            return None
        found.append(Field(number, kind, data[start:at]))
    return found


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        octet = data[at]
        value |= (octet & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if octet < 0x80:
            return value, at
    return 0, len(data) + 1


def edge(dice: random.Random) -> int:
    """Throw a number, mostly one where something ends."""
    numbers = (0, 1, 127, 128, 255, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 53)
    return dice.choice((*numbers, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, dice.randrange(1 << 40), dice.randrange(300)))


def of_bytes(data: bytes, dice: random.Random, *, keep_size: bool = False) -> bytes:
    """Change some bytes: flip, replace, put numbers on the edge, cut out, repeat."""
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 4, 16))):
        at = dice.randrange(len(out) + 1)
        size = dice.choice((1, 2, 10, 200))
        way = dice.randrange(3 if keep_size else 6)
        if way == 0 and at < len(out):
            out[at] ^= 1 << dice.randrange(8)
        elif way == 1 and at < len(out):
            out[at] = dice.choice((0, 0x7F, 0x80, 0xFF, dice.randrange(256)))
        elif way == 2:
            part = out[at : at + size]
            other = dice.randrange(len(out) + 1)
            if len(out[other : other + len(part)]) == len(part):
                out[other : other + len(part)] = part
        elif way == 3:
            number = varint(edge(dice))
            out[at : at + len(number)] = number
        elif way == 4:
            del out[at : at + size]
        elif way == 5:
            out[at:at] = out[at : at + size] * dice.choice((1, 1, 3, 100))
    return bytes(out)


def of_message(data: bytes, dice: random.Random, depth: int = 0) -> bytes:
    """Change one field of a message or of one inside it; the sizes around it are right."""
    parts = fields(data)
    if not parts or depth == DEEPEST:
        return of_bytes(data, dice)
    at = dice.randrange(len(parts))
    chosen = parts[at]
    inner = chosen.kind == DELIMITED and fields(chosen.value)
    if inner and dice.random() < 0.8:
        changed = chosen._replace(value=of_message(chosen.value, dice, depth + 1)).pack()
    else:
        changed = _of_field(chosen, parts, dice)
    return b"".join(changed if i == at else part.pack() for i, part in enumerate(parts))


def _of_field(part: Field, others: list[Field], dice: random.Random) -> bytes:
    return dice.choice((_left_out, _repeated, _renumbered, _another, _joined, _valued, _valued, _valued))(
        part, others, dice
    )


def _left_out(_: Field, __: list[Field], ___: random.Random) -> bytes:
    return b""


def _repeated(part: Field, _: list[Field], dice: random.Random) -> bytes:
    return part.pack() * dice.choice((2, 3, 50))


def _renumbered(part: Field, _: list[Field], dice: random.Random) -> bytes:
    return part._replace(number=dice.choice((1, 2, 15, 16, 130, edge(dice) % (1 << 29) or 1))).pack()


def _another(part: Field, others: list[Field], dice: random.Random) -> bytes:
    return dice.choice(others)._replace(number=part.number).pack()


def _joined(part: Field, others: list[Field], dice: random.Random) -> bytes:
    return part.pack() + dice.choice(others).pack()


def _valued(part: Field, _: list[Field], dice: random.Random) -> bytes:
    """Change a value: numbers on the edge and in too many octets, texts cut and doubled, sizes that lie."""
    if part.kind == VARINT:
        return part._replace(value=varint(edge(dice), padded=dice.choice((0, 0, 0, 1, 8, 9)))).pack()
    if part.kind != DELIMITED:
        return part._replace(value=of_bytes(part.value, dice, keep_size=True)).pack()
    if dice.random() < 0.3:
        return part.pack(size=edge(dice))
    texts = (b"", b"\xff\xfe", b"\0" * 9, part.value * 2, part.value[:-1], of_bytes(part.value, dice))
    return part._replace(value=dice.choice(texts)).pack()
