"""Mutated Chrome traces, plain and gzipped."""

from __future__ import annotations

import random

from tests.conftest import FIXTURES
from tests.readers.test_kineto_fuzz import MUTATIONS, packed

FORMAT, SUFFIX = "chrome-trace", ".json"
WHOLE = (FIXTURES / "chrome_trace" / "phases.json").read_bytes()


def unharmed() -> bytes:
    return WHOLE


def made(case: int) -> tuple[str, bytes]:
    dice, mutate = random.Random(case), MUTATIONS[case % len(MUTATIONS)]
    return mutate.__name__, packed(mutate(WHOLE, dice), dice)
