"""The cause of ``docs/why.md``, which is added to those of tracekit."""

from __future__ import annotations

import pytest
import tracekit as tk
from tests.conftest import FIXTURES
from tests.core.diagnosis.own_cause import SLOW_TRIAD, add_slow_triad
from tracekit.core.diagnosis import causes


@pytest.fixture(autouse=True)
def _restore_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "CAUSES", dict(causes.CAUSES))
    monkeypatch.setattr(causes, "RULES", list(causes.RULES))


@pytest.mark.slow
def test_a_registered_cause_is_found_with_its_saving() -> None:
    trace = tk.load(FIXTURES / "why" / "stream_triad.nsys-rep")
    assert all(cause.saving.likely < 0.02 for cause in trace.why().causes)
    add_slow_triad()
    first = tk.load(FIXTURES / "why" / "stream_triad.nsys-rep").why().causes[0]
    assert (first.cause, first.change, first.check) == ("slow_triad", SLOW_TRIAD.changes["any"], SLOW_TRIAD.check)
    assert first.saving.low < first.saving.likely < first.saving.high
    assert first.saving.likely == pytest.approx(0.5, abs=0.02)
    assert (first.evidence.table, first.rows[0].table) == ("kernels", "kernels")


@pytest.mark.slow
def test_captures_without_the_cause_keep_their_answer() -> None:
    before = tk.load(FIXTURES / "why" / "frames.nsys-rep").why()
    add_slow_triad()
    assert tk.load(FIXTURES / "why" / "frames.nsys-rep").why() == before


def test_causes_are_described_with_changes_and_checks() -> None:
    healthy = {"memory_bound", "compute_bound"}
    for name, cause in causes.CAUSES.items():
        assert cause.meaning.endswith("."), name
        assert bool(cause.changes) == bool(causes.get_check(name)) == (name not in healthy), name
        assert causes.get_change(name, "tensorflow") or name in healthy, name
    causes.register(causes.Cause("other", "Another cause.", {"any": "change it"}), lambda _: ())
    assert causes.get_check("other") == causes.DEFAULT_CHECK
