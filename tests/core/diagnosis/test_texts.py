"""The texts of answers."""

from __future__ import annotations

from dataclasses import replace

from tests.builders.programs import GEMM, MS, Program, steps
from tracekit.core.diagnosis import Why
from tracekit.core.diagnosis.answer import ColdSteps, FirstCall, LedgerPart, Saving, StepFigures
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


def describe_cold(*calls: int) -> str:
    """Return the end of the sentence about two cold steps of 20 ms, of which first calls take some times in ms."""
    why = answer()
    assert why.step is not None
    first = tuple(FirstCall(f"op {i}", 1, ns * MS, 0.1, ns * MS, 0) for i, ns in enumerate(calls))
    parts = (LedgerPart("matmul", "compute", 40 * MS, 1.0, 40 * MS),)
    cold = ColdSteps(2, 40 * MS, 36 * MS, parts, 0, 40 * MS, first)
    return _write_sentence(why.step, parts, (), "nothing_found", cold).partition(" in total")[2]


def test_what_cold_steps_spent() -> None:
    assert describe_cold(20) == ", of which 20 ms are first calls of 'op 0'."
    assert describe_cold(10, 5) == ", of which 15 ms are first calls, mostly of 'op 0'."
    assert describe_cold(5, 5, 5) == ", of which 15 ms are first calls."
    assert describe_cold(50) == describe_cold() == "."
    sentence = answer().sentence
    assert sentence.endswith(" The first step is cold: 23 ms in total, of which 20 ms are additional cpu work.")


def test_a_small_share_has_a_decimal() -> None:
    step = StepFigures("step", 4, 0, MS, MS, 4 * MS, None)
    parts = (LedgerPart("matmul", "compute", 3000, 0.003, 3000), LedgerPart("cpu_work", "idle", MS, 0.997, MS))
    assert "the GPU computes 0.3% of it" in _write_sentence(step, parts, (), "nothing_found", None)
    least = (replace(parts[0], share=0.0004), parts[1])
    assert "the GPU computes less than 0.1% of it" in _write_sentence(step, least, (), "nothing_found", None)


def test_what_links_of_a_cause_select() -> None:
    why = answer()
    texts = write_explanation(why)
    loading, precision = texts.causes[:2]
    assert loading.event is None
    assert [(rows.table, rows.count, rows.names) for rows in loading.rows] == [("nvtx_ranges", 4, ("load batch",))]
    assert precision.event == f"kernels:{why.causes[1].evidence.row_id}"
    assert [(rows.table, rows.count, rows.names) for rows in precision.rows] == [("kernels", 4, (GEMM,))]
    assert why.cold is not None
    assert texts.cold_span == (why.cold.start_ns, why.cold.end_ns)
    assert why.cold.end_ns - why.cold.start_ns == texts.cold_ns == why.cold.total_ns
    for cause, text in zip(why.causes, texts.causes, strict=True):
        assert text.interval == (cause.saving.low, cause.saving.likely, cause.saving.high)
        assert text.saving_ns == round(cause.saving.likely * 3_009_000)
        assert all(rows.start_ns is not None and rows.start_ns >= why.cold.end_ns for rows in text.rows)


def test_scope_names_the_steps_and_the_device() -> None:
    why = replace(answer(), device="GPU X")
    assert why.step is not None
    assert write_explanation(why).scope == "4 steady steps delimited by 'step *' on GPU X; 1 of the warm-up is left out"
    one = replace(why, device=None, step=replace(why.step, count=1, cold=0))
    assert write_explanation(one).scope == "1 steady step delimited by 'step *'"
    assert write_explanation(replace(one, scope="kernels")).scope == "Isolated kernels"
    assert write_explanation(replace(one, step=replace(why.step, name=None))).scope == "The whole capture"


def test_ranks_are_compared() -> None:
    why = answer()
    assert why.step is not None
    wait = LedgerPart("communication_wait", "communication", MS, 0.5, 4 * MS)
    slow = replace(why, rank=1, step=replace(why.step, median_ns=4 * MS), ledger=(*why.ledger, wait))
    ranks = (replace(why, rank=0), slow, Why("Nothing.", "not_recorded", rank=2))
    texts = write_explanation(replace(slow, ranks=ranks))
    assert texts.skew == (
        "3 ranks: a step takes between 3.01 ms (rank 0) and 4 ms (rank 1); rank 1 waits longest for others, for 1 ms"
    )
    assert [(row.rank, row.step_ns, row.waits_ns, row.is_slowest) for row in texts.rank_rows] == [
        (0, 3_009_000, 0, False),
        (1, 4 * MS, MS, True),
        (2, None, 0, False),
    ]
    assert write_explanation(replace(why, ranks=(ranks[0],))).skew == ""
    equal = write_explanation(replace(why, rank=0, ranks=(ranks[0], replace(why, rank=1)))).skew
    assert equal.endswith("3.01 ms (rank 0)")


def test_of_many_ranks_the_slowest_ones_are_listed() -> None:
    why = answer()
    ranks = tuple(replace(why, rank=rank) for rank in range(MAX_RANKS + 2))
    rows = write_explanation(replace(why, rank=MAX_RANKS + 1, ranks=ranks)).rank_rows
    assert [row.rank for row in rows] == [*range(MAX_RANKS - 1), MAX_RANKS + 1]


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
