"""Predictions of the time of steps after edits."""

from __future__ import annotations

import fnmatch
from typing import Any

import numpy as np
import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from tests.builders.programs import GEMM, MS, US, Program, steps
from tests.builders.random_programs import CALLS, KERNELS, LABELS, captures, programs
from tests.conftest import FIXTURES
from tracekit.core.diagnosis import Options, WhatIf, check_matches, combine, parse_edits, predict
from tracekit.core.diagnosis.edits import parse_edit, select_events
from tracekit.core.diagnosis.replay import ModelReplay, ReplayError
from tracekit.errors import TracekitError, UnknownFormatError


def what_if(program: Program, *edits: str, step_ns: int | None = None, rank: int | None = None) -> WhatIf:
    """Predict, and check what holds for every prediction."""
    parsed = parse_edits(edits)
    answer = predict(program.rollup(), parsed, Options(step_ns), rank=rank)
    for each in answer.ranks or (answer,):
        assert sum(part.ns for part in each.ledger) == each.after_ns
        assert each.saving <= 1
    check_matches(parsed, answer)
    return answer


def loop(count: int = 4) -> Program:
    """Steps of 1 ms of data loading, a blocking copy, a matrix product of 2 ms and a wait for it."""
    program = Program()

    def body(_: int) -> None:
        start = program.now
        program.pause(MS)
        program.range("data 1", start, program.now)
        program.transfer(ns=500 * US, blocks=True, src_memory_kind="Pageable", bytes=10**6)
        program.launch(GEMM, 2 * MS)
        program.wait()

    return steps(program, count, body)


def get_step(program: Program) -> int:
    """Return the duration of a step of ``loop``."""
    return int(np.diff(program.model().bounds)[0])


@pytest.mark.parametrize(
    ("edit", "saved"),
    [
        ("kernel * x0.5", MS),
        (f"kernel {GEMM} x0.5", MS),
        ("kernel ampere_*_nn x0.5", MS),
        ("kernel ampere?sgemm* =500us", 1500 * US),
        ("kernel * x2", -2 * MS),
        ("kernel * x1", 0),
        ("range data x0.5", MS // 2),
        ("range 'data 1' x0.5", MS // 2),
        ("range dat? x0.25", 750 * US),
        ("range data removed", MS),
        ("range data =100us", 900 * US),
        ("range data x3", -2 * MS),
        ("call cudaMemcpyAsync x1", 0),
        ("copy Host-to-Device x0.5", 250 * US),
        ("copy host-to-device x0.5", 250 * US),
        ("copy pageable x0.5", 250 * US),
        ("copy >=1MB pageable x0.5", 250 * US),
        ("copy * =100us", 400 * US),
    ],
)
def test_savings(edit: str, saved: int) -> None:
    program = loop()
    answer = what_if(program, edit)
    before = get_step(program)
    assert answer.before_ns == before
    assert answer.after_ns == pytest.approx(before - saved, abs=4)
    assert answer.saving == pytest.approx(saved / before, abs=1e-5)
    assert answer.status == "answered"
    assert answer.replay_error == 0.0
    assert [match.count for match in answer.edits] == [4]


def test_a_removed_wait_overlaps_steps() -> None:
    program = loop()
    answer = what_if(program, "call cudaDeviceSynchronize removed", "call cudaMemcpyAsync_v3020 removed")
    assert answer.after_ns == pytest.approx((4 * 2500 * US + MS) / 4, abs=10 * US)
    assert [match.count for match in answer.edits] == [4, 4]
    assert answer.edits[0].cpu_ns > 7 * MS
    both = what_if(program, "call cudaMemcpyAsync removed on both")
    assert both.edits[0].gpu_ns == 2 * MS
    assert both.after_ns == pytest.approx(get_step(program) - 500 * US, abs=20 * US)


def test_edits_apply_one_after_another() -> None:
    program = loop()
    twice = what_if(program, "kernel * x0.5", "kernel *gemm* x0.5")
    assert twice.after_ns == what_if(program, "kernel * x0.25").after_ns
    assert what_if(program, "kernel * x7", "kernel * =1ms").after_ns == what_if(program, "kernel * =1ms").after_ns
    assert what_if(program, "range data =2ms", "range data x0.5").saving == pytest.approx(0, abs=1e-6)


def test_the_ledger_is_that_of_the_predicted_step() -> None:
    before = {part.part: part.ns for part in what_if(loop(), "kernel * x1").ledger}
    after = {part.part: part.ns for part in what_if(loop(), "range data =500us").ledger}
    assert before["cpu_work"] - after["cpu_work"] == pytest.approx(500 * US, abs=2)
    assert before["matmul_fp32"] == pytest.approx(after["matmul_fp32"], abs=2) == pytest.approx(2 * MS, abs=2)
    removed = {part.part for part in what_if(loop(), "kernel * removed").ledger}
    assert "matmul_fp32" not in removed
    unblocked = {part.part for part in what_if(loop(), "call cudaMemcpyAsync removed").ledger}
    assert "blocking_copy" in before
    assert "blocking_copy" not in unblocked


def test_everything_removed() -> None:
    answer = what_if(loop(), "range step removed on both")
    assert (answer.after_ns, answer.saving, answer.ledger) == (0, 1.0, ())


@pytest.mark.slow
def test_a_cause_is_cured_as_why_predicts() -> None:
    program = loop()
    why = program.diagnose()
    cause = next(c for c in why.causes if c.cause == "data_loading")
    answer = what_if(program, "cause:data_loading")
    assert answer.without_profiler is not None
    assert answer.without_profiler.likely == pytest.approx(cause.saving.likely, abs=1e-6)
    assert answer.edits[0].count == cause.evidence.count
    assert what_if(program, "cause:data_loading x0.5").saving == pytest.approx(answer.saving / 2, abs=0.02)
    first = what_if(program, "range data =5ms", "cause:data_loading")
    last = what_if(program, "cause:data_loading", "range data =5ms")
    assert first.after_ns == last.after_ns
    with pytest.raises(UnknownFormatError, match="cause:barrier' matches nothing") as error:
        what_if(program, "cause:barrier")
    assert "data_loading" in str(error.value)


def test_the_step_time_without_the_profiler() -> None:
    answer = what_if(loop(), "range data removed", step_ns=3 * MS)
    assert answer.before_ns == 3 * MS
    assert answer.after_ns == pytest.approx(2505 * US, abs=20 * US)


def test_the_cpu_side_of_kernels_is_their_launch_and_the_code_before() -> None:
    program = Program()

    def body(_: int) -> None:
        for _ in range(10):
            program.pause(20 * US)
            program.launch("relu", 5 * US)
        program.wait()

    steps(program, 4, body)
    step = get_step(program)
    assert what_if(program, "kernel relu x0.5 on cpu").after_ns == pytest.approx(step - 125 * US, abs=5 * US)
    assert what_if(program, "kernel relu =10us on cpu").after_ns == pytest.approx(step - 150 * US, abs=5 * US)
    removed = what_if(program, "kernel relu removed on both")
    assert removed.after_ns < 10 * US
    assert (removed.edits[0].cpu_ns, removed.edits[0].gpu_ns) == (1000 * US, 200 * US)


def test_kernels_of_graphs_have_no_calls_of_their_own() -> None:
    program = Program()
    call = program.do("cudaGraphLaunch_v10000")
    for node in range(2):
        program.kernel(call, program.now + node * US, program.now + node * US + 500, graph_node_id=node)
    assert what_if(program, "kernel k x2").edits[0].count == 2
    assert what_if(program, "call cudaGraphLaunch x2 on gpu").edits[0].gpu_ns == 1000
    with pytest.raises(UnknownFormatError, match="write on gpu, or on both"):
        what_if(program, "kernel k x2 on cpu")
    program.do("cudaGetDevice")
    with pytest.raises(UnknownFormatError, match="write on cpu, or on both"):
        what_if(program, "call cudaGetDevice x2 on gpu")


@pytest.mark.parametrize(
    ("edit", "hint"),
    [
        ("kernel gemm x2", f"did you mean|choose one of these kernels: {GEMM}"),
        ("range Data x2", "choose one of these ranges: "),
        ("call cudaDeviceSync x2", "did you mean 'cudaDeviceSynchronize_v3020'?"),
        ("copy Device-to-Host x2", "choose one of these kinds of copies: Host-to-Device"),
        ("copy <1KB x2", "choose one of these kinds of copies: Host-to-Device"),
        ("rank 1: kernel * x2", "remove the rank, because there is only one"),
        ("kernel .* x2", GEMM),
        ("kernel [a]* x2", GEMM),
    ],
)
def test_an_edit_that_matches_nothing_is_an_error(edit: str, hint: str) -> None:
    with pytest.raises(UnknownFormatError, match=r"matches nothing in the steady steps|applies to no rank") as error:
        what_if(loop(), "kernel * x1", edit)
    assert any(part in str(error.value) for part in hint.split("|"))


def test_long_names_are_shortened_in_hints() -> None:
    program = Program()
    program.launch("a" * 5000)
    with pytest.raises(UnknownFormatError) as error:
        what_if(program, "kernel b x2")
    assert len(str(error.value)) < 400


def test_there_must_be_an_edit() -> None:
    with pytest.raises(UnknownFormatError, match="there is no edit"):
        parse_edits([])
    assert parse_edits("kernel * x2") == (parse_edit("kernel * x2"),)


def test_steps_of_years_are_an_error() -> None:
    with pytest.raises(TracekitError, match="would take years"):
        what_if(loop(), *["kernel * x999999"] * 3)


def test_processes_are_ranks() -> None:
    program = loop()
    program.process, program.now, program.free = 2, 0, {}
    program.thread = 2

    def body(_: int) -> None:
        program.launch(GEMM, 20 * MS)
        program.wait()

    steps(program, 4, body)
    answer = what_if(program, "rank 1: kernel * =1ms")
    assert [rank.rank for rank in answer.ranks] == [0, 1]
    assert [len(rank.edits) for rank in answer.ranks] == [0, 1]
    assert answer.ranks[0].saving == 0
    assert answer.rank == 0
    assert "ranks are replayed separately" in answer.notes[-1]
    with pytest.raises(UnknownFormatError, match="applies to no rank") as error:
        what_if(program, "rank 7: kernel * x2")
    assert error.value.hint == "the ranks are 0, 1"
    assert what_if(program, "rank 7: kernel * x2", rank=7).rank == 7


def test_without_gpu_work() -> None:
    answer = what_if(Program(), "kernel * x2")
    assert (answer.status, answer.step, answer.ledger) == ("not_applicable", None, ())
    assert combine([answer, answer]).status == "not_applicable"
    check_matches(parse_edits("kernel * x2"), combine([answer, answer]))


def test_the_work_of_the_cpu_may_be_unknown() -> None:
    """Without calls and ranges, half the time of the kernels is saved, or nothing if the CPU is as slow as the GPU."""
    path = FIXTURES / "nccl" / "events.jsonl"
    with tk.load(path) as trace:
        answer, same = trace.what_if("kernel * x0.5"), trace.what_if("kernel * x1")
    assert (answer.status, answer.saving, answer.without_profiler) == ("unsure", 0, None)
    assert answer.sentence == (
        "A step would take 34.7 µs to 67.4 µs instead of 67.4 µs: neither API calls nor ranges were recorded, so the "
        "work of the CPU is unknown."
    )
    assert answer.notes[-1] == "API calls (nsys profile --trace=cuda,nvtx) tell the work of the CPU"
    assert (same.status, same.sentence) == ("answered", "A step would still take 67.4 µs.")


@pytest.mark.parametrize("name", ["nccl/stuck_rank0.json", "ncu/ncu_basic.ncu-rep"])
def test_captures_without_steps_predict_nothing(name: str) -> None:
    with tk.load(FIXTURES / name) as trace:
        answer, why = trace.what_if("kernel * x0.5"), trace.why()
    assert (answer.status, why.status, answer.step) == ("not_applicable", "answered", None)
    assert answer.sentence.startswith("The capture contains no steps with GPU work, so nothing is predicted. ")
    assert answer.sentence.endswith(why.sentence)


def test_an_untrustworthy_replay_is_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelReplay, "error", 0.2)
    answer = what_if(loop(), "kernel * x0.5")
    assert answer.status == "unsure"
    assert answer.sentence.endswith("This is unreliable: the replay does not reproduce the recorded steps.")
    assert any("off by up to 20.0%" in note for note in answer.notes)


def test_the_object_for_json() -> None:
    answer = what_if(loop(), "fast = kernel * x0.5")
    envelope = answer.to_envelope(["a.nsys-rep"])
    assert {k: envelope[k] for k in ("schema", "input", "status", "warnings")} == {
        "schema": 1,
        "input": ["a.nsys-rep"],
        "status": "answered",
        "warnings": [],
    }
    data = envelope["data"]
    assert list(data) == [
        *("sentence", "status", "step", "before_ns", "after_ns", "saving", "without_profiler", "edits", "ledger"),
        *("replay_error", "notes"),
    ]
    assert data["edits"] == [
        {
            "edit": "fast = kernel * x0.5",
            "name": "fast",
            "side": "gpu",
            "count": 4,
            "cpu_ns": 0,
            "gpu_ns": 8 * MS,
        }
    ]
    assert answer.sentence == "A step would take 2.52 ms instead of 3.52 ms: 28.4% less."
    assert what_if(loop(), "kernel * x2").sentence == "A step would take 5.52 ms instead of 3.52 ms: 56.9% more."
    assert what_if(loop(), "kernel * x1").sentence == "A step would still take 3.52 ms."
    assert "rank" not in data
    ranked: dict[str, Any] = combine([what_if(loop(), "kernel * x1", rank=r) for r in (3, 4)]).to_dict()
    assert (ranked["rank"], [rank["rank"] for rank in ranked["ranks"]]) == (3, [3, 4])


SELECTORS = st.one_of(
    st.sampled_from([*KERNELS, "*gemm*", "?", "*"]).map(lambda name: f"kernel '{name}'"),
    st.sampled_from([*CALLS, "cuda*", "*Synchronize*"]).map(lambda name: f"call {name}"),
    st.sampled_from([*LABELS, "step ?", "*"]).map(lambda name: f"range {name}"),
    st.sampled_from(["*", "pageable", "<5", "Host-to-Device"]).map(lambda name: f"copy {name}"),
)
SIDES = st.sampled_from(["cpu", "gpu", "both"])


@given(programs() | captures(), SELECTORS, SIDES, st.sampled_from(["x0", "x0.3", "x1", "x2", "=3us", "removed"]))
def test_any_edit_of_any_program_gives_a_step(program: Program, selector: str, side: str, action: str) -> None:
    answer = predict(program.rollup(), parse_edits(f"{selector} {action} on {side}"))
    for rank in answer.ranks or (answer,):
        assert sum(part.ns for part in rank.ledger) == rank.after_ns >= 0
        if action == "x1" or all(match.hint for match in rank.edits):
            assert rank.saving == 0


@pytest.mark.slow
@given(programs(), SELECTORS, SIDES)
def test_a_longer_event_never_makes_a_step_shorter(program: Program, selector: str, side: str) -> None:
    factors = ("x0.2", "x1", "x3")
    answers = [predict(program.rollup(), parse_edits(f"{selector} {factor} on {side}")) for factor in factors]
    savings = [answer.saving for answer in answers]
    assert savings == sorted(savings, reverse=True)


@given(programs(), st.sampled_from([*LABELS, "step ?", "o*", "*a*"]), st.sampled_from([*KERNELS, "k*", "*x*"]))
def test_selections_are_those_of_brute_force(program: Program, label: str, kernel: str) -> None:
    inspection = program.inspection()
    model = inspection.model
    selected = select_events(inspection, [], parse_edit(f"kernel '{kernel}' x1"))
    names = model.names.cast(str).to_list()
    tables = model.events.operations["table"].gather(model.operations.row)
    assert selected.operations.rows.tolist() == [
        row
        for row, (name, table) in enumerate(zip(names, tables, strict=True))
        if table == "kernels" and name is not None and fnmatch.fnmatchcase(name, kernel.replace("[", "[[]"))
    ]
    first, last = model.steps[0].start_ns, model.steps[-1].end_ns
    inside: set[int] = set()
    for start, end, name in model.events.ranges.iter_rows():
        if fnmatch.fnmatchcase(name, label):
            inside.update(range(max(start, first) // 500, min(end, last) // 500))
    ranges = select_events(inspection, [], parse_edit(f"range '{label}' x1 on both"))
    items = model.items
    length = (items.end - items.start)[ranges.items.rows]
    assert float((length * ranges.items.share).sum()) == pytest.approx(
        500 * len(inside), abs=500 * 2 * len(program.tables["nvtx_ranges"])
    )
    launching = items.start[model.operations.item[ranges.operations.rows]]
    assert all(time // 500 in inside or (time // 500) - 1 in inside for time in launching.tolist())


def test_without_a_replay_nothing_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ReplayError("too much memory")

    monkeypatch.setattr(ModelReplay, "run", fail)
    answer = what_if(loop(), "kernel * x0.5")
    assert (answer.status, answer.step, answer.ledger) == ("unsure", None, ())
    assert answer.sentence == "The events cannot be replayed, so nothing is predicted: too much memory."
