"""Mutated databases of rocmProfileData, also gzipped ones."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz import sqlite_pages
from tests.fuzz.rocpd import mutated

FORMAT, SUFFIX = "rpd", ".rpd"
DATA = (Path(__file__).parents[2] / "fixtures" / "rocm" / "train.rpd").read_bytes()
PAGED = sqlite_pages.repaged(DATA, 512)


def made(case: int) -> tuple[str, bytes]:
    return mutated(case, DATA, PAGED)


def unharmed() -> bytes:
    return DATA
