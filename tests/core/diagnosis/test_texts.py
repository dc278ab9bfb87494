"""The texts of answers."""

from __future__ import annotations

from dataclasses import replace

from tests.builders.programs import GEMM, MS, Program, steps
from tracekit.core.diagnosis import Why
from tracekit.core.diagnosis.answer import Saving
from tracekit.core.diagnosis.diagnose import _write_sentence
from tracekit.core.diagnosis.texts import MAX_RANKS, REST, write_explanation


def answer() -> Why:
    """The answer of steps with FP32 products and work on the CPU, the first of which takes 20 ms longer."""
    program = Program()

    def body(number: int) -> None:
        program.launch(GEMM, MS)
        program.wait()
        start = program.now
        program.pause(2 * MS + (20 * MS if number == 0 else 0))
        program.range("load batch", start, program.now)

    return steps(program, 5, body).diagnose()


def test_texts() -> None:
    why = answer()
    texts = write_explanation(why)
    assert texts.is_answered
    assert texts.sentence == why.sentence
    first = texts.ledger[0]
    assert (first.label, first.group, first.place) == (
        "idle: cpu work",
        "idle",
        "load batch",
    ) or first.label.startswith("idle: cpu work")
    assert sum(row.ns for row in texts.ledger) == sum(part.ns for part in why.ledger)
    assert texts.causes[0].title == "data loading in 'load batch'"
    assert texts.causes[0].saving.startswith("saves ")
    assert "after those above" not in texts.causes[0].saving
    assert texts.causes[1].saving.endswith(" after those above")
    assert texts.together.startswith("all together: ")
    assert texts.cold == "the first step takes 23 ms"
    assert sum(row.ns for row in texts.cold_ledger) == 23_009_000
    assert texts.ranks == ()


def test_numbers_of_verbs_and_unsure_causes() -> None:
    why = answer()
    assert why.step is not None
    step = replace(why.step, mean_ns=2 * why.step.median_ns)
    causes = (replace(why.causes[0], cause="small_copies"), replace(why.causes[1], status="unsure"))
    sentence = _write_sentence(step, why.ledger, causes, "answered", None)
    assert sentence.startswith("Steady step 3.01 ms (6.02 ms on average); the GPU computes 33% of it: small copies in ")
    assert "'load batch' cost about " in sentence
    assert "precision may cost about " in sentence


def test_parts_without_a_row_of_their_own() -> None:
    rows = write_explanation(answer(), max_parts=1).ledger
    assert [row.group for row in rows] == ["idle", REST]
    assert rows[1].label.endswith(" more")


def test_savings_that_are_unsure_or_nothing() -> None:
    why = answer()
    unsure = replace(why.causes[0], status="unsure", missing="shapes")
    healthy = replace(why.causes[1], saving=Saving(0.0, 0.0, 0.0), after=0.0)
    texts = write_explanation(replace(why, causes=(unsure, healthy), cold=None))
    assert texts.causes[0].saving.startswith("unsure: may save ")
    assert "shapes" in texts.causes[0].missing
    assert texts.causes[1].saving == "healthy"
    assert texts.cold == ""
    assert write_explanation(replace(why, causes=(unsure,))).together == ""


def test_many_warm_up_steps_and_ranks() -> None:
    why = answer()
    assert why.cold is not None
    ranks = tuple(replace(why, rank=rank) for rank in range(MAX_RANKS + 2))
    texts = write_explanation(replace(why, cold=replace(why.cold, count=3), ranks=ranks))
    assert texts.cold == "the first 3 steps take 23 ms"
    assert texts.ranks[0] == f"rank 0: {why.sentence}"
    assert texts.ranks[-1] == "2 more ranks"
    assert len(texts.ranks) == MAX_RANKS + 1


def test_nothing_to_explain() -> None:
    texts = write_explanation(Why("Nothing.", "not_applicable"))
    assert not texts.is_answered
    assert texts.ledger == texts.causes == texts.cold_ledger == ()
