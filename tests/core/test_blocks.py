"""Results that are computed in blocks of a few rows, with all columns in temporary files, are those of one block."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
import tracekit as tk
from tests.helpers import small_blocks
from tracekit.core.reports import nvtx

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEKIT_CACHE", "off")


def compute(path: Path) -> list[object]:
    with tk.load(path) as trace:
        linked = trace.correlate()
        names = ("nvtx_projections", "kernels", "ops", "op_instances")
        return [
            trace.report("nvtx_kern_sum").frame().rows(),
            *(linked[name].to_pylist() for name in names),
            trace.why().to_dict(),
        ]


@pytest.mark.parametrize("name", ["graph_node", pytest.param("train_amp", marks=pytest.mark.slow)])
def test_results_do_not_depend_on_the_size_of_blocks(name: str) -> None:
    path = FIXTURES / f"{name}.sqlite"
    expected = compute(path)
    with small_blocks(300), mock.patch.object(nvtx, "_PAIRS_AT_ONCE", 100):
        assert compute(path) == expected
