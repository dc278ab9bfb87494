"""Computations on a few rows as if they were many."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from tracekit.system import memory, sorting

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def small_blocks(rows: int) -> Iterator[None]:
    """Blocks of a few rows, and temporary files for all arrays."""
    with pytest.MonkeyPatch.context() as patch, memory.limit_memory(0):
        patch.setattr(sorting, "BLOCK_ROWS", rows)
        yield
