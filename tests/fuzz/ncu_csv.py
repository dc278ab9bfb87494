"""Mutated CSV of Nsight Compute, read in blocks of several sizes."""

from __future__ import annotations

import random

from tests.readers.test_ncu_csv_fuzz import FILES, mutated
from tracekit.readers.ncu_csv import frame

FORMAT, SUFFIX = "ncu-csv", ".csv"
BLOCKS = (100, 10_000, frame.BLOCK_BYTES)


def unharmed() -> bytes:
    return FILES[0]


def made(case: int) -> tuple[str, bytes]:
    dice = random.Random(case)
    frame.BLOCK_BYTES = dice.choice(BLOCKS)
    return f"blocks of {frame.BLOCK_BYTES} bytes", mutated(dice)
