"""Mutated rocpd databases, also gzipped ones."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

from tests.fuzz import sqlite_pages
from tests.fuzz.changes import of_bytes
from tests.fuzz.dlprof_db import MUTATIONS

FORMAT, SUFFIX = "rocpd", ".db"
DATA = (Path(__file__).parents[2] / "fixtures" / "rocm" / "train_results.db").read_bytes()
PAGED = sqlite_pages.repaged(DATA, 512)
ZIPPED = 25


def mutated(case: int, *files: bytes) -> tuple[str, bytes]:
    """Change one of some databases; every 25th is gzipped, some of them before the change."""
    dice = random.Random(case)
    change = dice.choice(MUTATIONS if case % 2 else sqlite_pages.CHANGES)
    file = dice.choice(files)
    if case % ZIPPED:
        return change.__name__, change(file, dice)
    if case % (2 * ZIPPED):
        return f"{change.__name__}, gzipped", gzip.compress(change(file, dice), mtime=0)
    return "gzip file", of_bytes(gzip.compress(file, mtime=0), dice)


def made(case: int) -> tuple[str, bytes]:
    return mutated(case, DATA, PAGED)


def unharmed() -> bytes:
    return DATA
