"""Mutated reports of Nsight Compute."""

from __future__ import annotations

import random

from tests.builders.ncu_rep import FIXTURES
from tests.readers.test_ncu_rep_fuzz import MUTATIONS

FORMAT, SUFFIX = "ncu-rep", ".ncu-rep"
FILES = [p.read_bytes() for p in FIXTURES]


def unharmed() -> bytes:
    return FILES[0]


def made(case: int) -> tuple[str, bytes]:
    which, mutate = case % len(FILES), MUTATIONS[case // len(FILES) % len(MUTATIONS)]
    return f"{FIXTURES[which].stem}, {mutate.__name__}", mutate(FILES[which], random.Random(case))
