"""Mutated profiles of Proton."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.fuzz.changes import edge, of_bytes
from tests.readers.test_proton import PYTHON, SCOPES

FORMAT, SUFFIX = "proton", ".hatchet"
DATA, OTHER = SCOPES.read_bytes(), PYTHON.read_bytes()
FIRST = 60
"""Bytes by which a file is recognized."""


def whole_file(dice: random.Random) -> bytes:
    return DATA[:FIRST] + of_bytes(DATA[FIRST:], dice)


def truncated(dice: random.Random) -> bytes:
    return OTHER[: dice.randrange(FIRST, len(OTHER))]


def values(dice: random.Random) -> bytes:
    """Replace metrics, names and children."""
    document = json.loads(dice.choice((DATA, OTHER)))
    nodes: list[Any] = [document[0]]
    for node in nodes:
        nodes += node["children"]
    for _ in range(dice.choice((1, 3, 9))):
        node = dice.choice(nodes)
        value = dice.choice((edge(dice), -1, 0.5, 1e308, "x", None, True, [], {}, "\ud800", "a/b" * 999))
        change = dice.choice(("metric", "frame", "children", "device"))
        if change == "metric":
            node["metrics"][dice.choice(("count", "time (ns)", "flops16", "bytes", "device_id", "x"))] = value
        elif change == "frame":
            node["frame"] = dice.choice((value, {"name": value}))
        elif change == "children":
            node["children"] = value
        else:
            document[1] = dice.choice((value, {"CUDA": value}, {"CUDA": {"0": {"arch": value, "num_sms": value}}}))
    return json.dumps(document).encode()


def many(dice: random.Random) -> bytes:
    leaf = b'{"children":[],"frame":{"name":"f"},"metrics":{"time (ns)":1,"device_id":"0"}},'
    return b'[{"children":[' + leaf * dice.choice((10, 3000)) + DATA.lstrip(b"[\n ")


def made(case: int) -> tuple[str, bytes]:
    ways = (whole_file, truncated, values, values, many)
    mutate = ways[case % len(ways)]
    return mutate.__name__, mutate(random.Random(case))


def unharmed() -> bytes:
    return DATA
