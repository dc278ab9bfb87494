"""Mutated traces of the PyTorch profiler, plain and gzipped."""

from __future__ import annotations

import gzip
import random

from tests.builders.kineto import TRACE
from tests.readers.test_kineto_fuzz import MUTATIONS, packed

FORMAT, SUFFIX = "kineto", ".json"
WHOLE = gzip.decompress(TRACE.read_bytes())


def unharmed() -> bytes:
    return WHOLE


def made(case: int) -> tuple[str, bytes]:
    dice, mutate = random.Random(case), MUTATIONS[case % len(MUTATIONS)]
    return mutate.__name__, packed(mutate(WHOLE, dice), dice)
