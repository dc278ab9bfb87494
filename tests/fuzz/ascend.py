"""Mutated timelines of the Ascend PyTorch profiler, plain and gzipped."""

from __future__ import annotations

import random

from tests.readers.test_ascend import FIXTURE
from tests.readers.test_kineto_fuzz import MUTATIONS, packed

FORMAT, SUFFIX = "ascend", ".json"
WHOLE = FIXTURE.read_bytes()


def unharmed() -> bytes:
    return WHOLE


def made(case: int) -> tuple[str, bytes]:
    dice, mutate = random.Random(case), MUTATIONS[case % len(MUTATIONS)]
    return mutate.__name__, packed(mutate(WHOLE, dice), dice)
