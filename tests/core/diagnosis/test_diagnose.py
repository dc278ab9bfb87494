"""Answers: figures, statuses, sentences and the object for JSON."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import tracekit as tk
from hypothesis import given
from tests.builders.jobs import straggle
from tests.builders.programs import GEMM, HALF_GEMM, LAUNCH, MS, US, Program, steps
from tests.builders.random_programs import captures, programs
from tests.conftest import FIXTURES
from tests.core.diagnosis.test_fixtures import check_figures
from tracekit.core.diagnosis import Options, Why, causes, diagnose, operations
from tracekit.core.diagnosis.cures import Claims, Cure, deduplicate, find_stalls
from tracekit.core.diagnosis.diagnose import _list_rows, choose_scales
from tracekit.core.diagnosis.inspection import Inspection
from tracekit.core.diagnosis.replay import Edit, ModelReplay, create_unedited


def loop(count: int = 5, *, work: int = 2 * MS, cold: int = 0) -> Program:
    """Steps with FP32 products and work on the CPU."""
    program = Program()
    program.device()

    def body(number: int) -> None:
        program.launch(GEMM, MS)
        program.wait()
        start = program.now
        program.pause(work + (cold if number == 0 else 0))
        program.range("load batch", start, program.now)

    return steps(program, count, body)


@pytest.mark.slow
@given(programs())
def test_figures_of_programs(program: Program) -> None:
    check_figures(program.diagnose())


@given(captures())
def test_figures_of_any_capture(program: Program) -> None:
    check_figures(program.diagnose())


def test_an_answer() -> None:
    answer = loop(cold=20 * MS).diagnose()
    assert answer.status == "answered"
    assert answer.step is not None
    assert (answer.step.name, answer.step.count, answer.step.cold) == ("step *", 4, 1)
    assert answer.step.median_ns == answer.step.mean_ns == 3 * MS + 9 * US
    assert answer.step.total_ns == 4 * answer.step.median_ns
    assert answer.step.covered == 1
    assert [c.cause for c in answer.causes][:2] == ["data_loading", "precision"]
    loading, precision = (f"{cause.saving.likely:.0%}" for cause in answer.causes[:2])
    assert answer.sentence.startswith(
        "Steady step 3.01 ms; the GPU computes 33% of it: data loading in 'load batch' costs about "
    )
    assert f" ({loading}); precision costs about " in answer.sentence
    assert answer.sentence.endswith(
        f" ({precision}). The first step is cold: 23 ms in total, of which 20 ms are additional cpu work."
    )
    first = answer.causes[0]
    assert first.place.range == "load batch"
    assert (first.place.thread_id, first.place.process_id) == (1, 1)
    assert first.evidence.count == 4
    assert (first.evidence.table, first.evidence.row_id) == ("api_calls", None)
    assert answer.causes[1].rows[0].table == "kernels"
    assert answer.causes[1].rows[0].ids == (1, 2, 3, 4)
    assert (answer.device, answer.framework) == ("NVIDIA H100 80GB HBM3", "cuda")
    assert answer.cold is not None
    assert answer.cold.total_ns == 23 * MS + 9 * US
    assert answer.cold.excess_ns == 20 * MS


def test_the_object_for_json() -> None:
    """Names and types of its keys."""
    envelope = json.loads(json.dumps(loop(cold=20 * MS).diagnose().to_envelope(["a.sqlite"], ["careful"])))
    assert list(envelope) == ["schema", "tool", "input", "status", "warnings", "data"]
    assert (envelope["schema"], envelope["tool"]["name"]) == (1, "tracekit")
    assert (envelope["input"], envelope["status"], envelope["warnings"]) == (["a.sqlite"], "answered", ["careful"])
    data = envelope["data"]
    assert {"step", "ledger", "causes", "together", "replay_error", "status"} <= data.keys()
    assert {"name": str, "count": int, "cold": int, "median_ns": int, "covered": float}.items() <= {
        key: type(value) for key, value in data["step"].items()
    }.items()
    for part in (*data["ledger"], *data["cold"]["ledger"]):
        assert {k: type(part[k]) for k in ("part", "class", "ns", "share")} == {
            "part": str,
            "class": str,
            "ns": int,
            "share": float,
        }
    assert sum(part["ns"] for part in data["ledger"]) == data["step"]["median_ns"]
    keys = {"cause", "place", "evidence", "rows", "change", "saving", "after", "status"}
    for cause in data["causes"]:
        assert keys <= cause.keys()
        assert {k: type(v) for k, v in cause["saving"].items()} == dict.fromkeys(("low", "likely", "high"), float)
        assert type(cause["after"]) is float
    assert "ranks" not in data
    assert "rank" not in data


def test_processes_are_ranks() -> None:
    program = loop()
    program.process = 2
    program.now = 0
    program.kernel(program.do(LAUNCH), 10 * US, 20 * US)
    data = json.loads(json.dumps(program.diagnose().to_dict()))
    assert len(data["ranks"]) == 2
    assert all(rank["step"] for rank in data["ranks"])
    assert [part["class"] for part in data["ranks"][1]["ledger"]]


def test_cause_of_nothing() -> None:
    """A GPU that is busy all the time with kernels that are already good."""
    program = Program()
    answer = steps(program, 4, lambda _: program.launch("my_kernel", MS)).diagnose()
    assert answer.status == "nothing_found"
    assert answer.causes == ()
    assert answer.together == 0
    assert answer.sentence == "Steady step 1 ms; the GPU computes 100% of it; no cure is predicted to save 2 % or more."


def test_a_graph_that_was_recorded_as_a_whole() -> None:
    program = Program()

    def body(_: int) -> None:
        call = program.do("cudaGraphLaunch_v10000")
        program.graph(call, program.now, program.now + MS)
        program.pause(MS)

    answer = steps(program, 4, body).diagnose()
    assert answer.status == "unsure"
    assert [c.status for c in answer.causes] == ["unsure"]
    assert answer.causes[0].missing == "nsys profile --cuda-graph-trace=node"
    assert "but the capture does not show what in it could be faster" in answer.sentence
    assert any("record with nsys profile --cuda-graph-trace=node" in note for note in answer.notes)


def test_the_whole_capture_as_one_step() -> None:
    program = Program()
    for _ in range(3):
        program.launch(GEMM, MS)
    answer = program.diagnose()
    assert answer.step is not None
    assert answer.step.name is None
    assert answer.sentence.startswith("The capture")
    assert answer.notes[0].startswith("no range delimits steps")


def test_notes() -> None:
    program = loop(2)
    program.kernel(program.call(LAUNCH, program.now + 1, program.now + 2), program.now + 3, program.now + 5 * MS)
    notes = program.diagnose().notes
    assert notes == ("the capture has only 2 steady steps", "steps launched only 29% of the GPU time")


def test_numbers_of_occurrences() -> None:
    """The code around calls does not count."""

    def body(number: int) -> None:
        for _ in range(30):
            program.do("cudaMalloc_v3020", 100 * US)
            program.pause(20 * US)
        for _ in range(40):
            program.launch("my_kernel", US)
            program.pause(20 * US)
            program.do("cudaGetDevice", US)

    program = Program()
    counts = {c.cause: c.evidence.count for c in steps(program, 4, body).diagnose().causes}
    assert (counts["memory_allocation"], counts["launch_overhead"]) == (4 * 30, 4 * 40)


def test_two_cold_steps() -> None:
    program = Program()

    def body(number: int) -> None:
        program.launch("my_kernel", MS)
        program.pause(20 * MS if number < 2 else MS)

    answer = steps(program, 8, body).diagnose()
    assert answer.sentence.endswith(
        "The first 2 steps are cold: 40 ms in total, of which 38 ms are additional cpu work."
    )


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("empty.sqlite", "not_applicable", "no GPU work that could be explained"),
        ("cpu_only.sqlite", "not_recorded", "No GPU work was recorded"),
        ("omp.sqlite", "not_applicable", "no GPU work that could be explained"),
        ("memory_snapshot/oom.pickle", "not_applicable", "records only the memory of GPUs"),
        ("tensorflow/network.pb", "not_applicable", "no GPU work that could be explained"),
        ("tensorflow/runs", "not_applicable", "no GPU work that could be explained"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_captures_without_gpu_work(path: str, status: str, text: str) -> None:
    with tk.load(FIXTURES / path) as trace:
        answer = trace.why()
    assert answer.status == status
    assert text in answer.sentence
    assert answer.step is None
    assert json.loads(json.dumps(answer.to_dict()))["step"] is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_dlprof_databases(tmp_path: object) -> None:
    with tk.load(FIXTURES / "train_amp.sqlite") as trace:
        path = trace.export(tmp_path / "dlprof_dldb.sqlite", format="dlprof-db")  # type: ignore[operator]
    with tk.load(path) as trace:
        check_figures(trace.why())


@pytest.mark.parametrize(("step_ms", "factor"), [(3, 1.0), (2, 0.5), (1.5, 0.24), (60, 20.0), (0.001, 0.0)])
def test_the_duration_of_a_step_without_the_profiler(step_ms: float, factor: float) -> None:
    """It scales the work on the CPU, of which there are 2 ms beside 1 ms on the GPU."""
    answer = loop().diagnose(int(step_ms * MS))
    loading = [c.saving.likely for c in answer.causes if c.cause == "data_loading"]
    expected = 2 * factor / (1.007 + 2 * factor)
    assert (loading or [0.0])[0] == pytest.approx(0.96 * expected, abs=0.02)


@pytest.mark.parametrize(("step_ms", "is_possible"), [(2, True), (1.1, True), (0.5, False), (1e6, False)])
def test_durations_that_no_speed_of_the_cpu_yields(step_ms: float, is_possible: bool) -> None:
    notes = loop().diagnose(int(step_ms * MS)).notes
    assert any(note.startswith("no speed of the CPU yields a step of ") for note in notes) != is_possible


@pytest.mark.parametrize("step_ns", [0, -5])
def test_a_step_without_the_profiler_takes_time(step_ns: int) -> None:
    with pytest.raises(tk.TracekitError, match=f"cannot be {step_ns} ns"):
        loop().diagnose(step_ns)


def test_the_duration_of_a_step_that_the_gpu_bounds() -> None:
    """No scale of the CPU can be solved for it, so the usual ones are kept."""
    assert loop(work=10 * US).diagnose(2 * MS).causes == loop(work=10 * US).diagnose().causes


def test_large_captures_are_predicted_from_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["tracekit.core.diagnosis.diagnose"], "MAX_ITEMS", 12)
    answer = loop(9).diagnose()
    assert any("savings are predicted from" in note for note in answer.notes)
    check_figures(answer)


@pytest.mark.parametrize("share", [0.6, 0.8, 1.5])
def test_scales_for_a_known_time_of_steps(share: float) -> None:
    """The unchanged steps take the given time, whatever the profiler slows down: not launching, if steps are longer."""
    program = Program()

    def body(_: int) -> None:
        for _ in range(40):
            program.launch(GEMM, 5 * US)
            program.pause(40 * US)
        program.wait()
        program.pause(2 * MS)

    inspection = steps(program, 4, body).inspection()
    engine, is_stall = ModelReplay(inspection.model), find_stalls(inspection.model, [])
    step_ns = round(share * inspection.model.duration_ns / 4)
    scales, likely = choose_scales(engine, inspection, [], Options(step_ns))
    assert likely == 0
    for each in scales:
        measured = engine.measure(create_unedited(inspection.model), each, is_stall) / 4
        assert measured == pytest.approx(step_ns, rel=0.01)
        assert (each.host > 1) == (share > 1)
        assert each.launch <= 1
    assert len({each.launch for each in scales}) == len(scales)


HUGE = 1 << 60


@pytest.mark.many(10)
@pytest.mark.parametrize("start", [0, -HUGE, HUGE])
@pytest.mark.parametrize("gap", [0, HUGE])
@pytest.mark.parametrize("step_ns", [None, 1, HUGE])
@pytest.mark.parametrize("ranges", [True, False])
def test_times_far_from_others(start: int, gap: int, step_ns: int | None, ranges: bool) -> None:
    """Sums of times that do not fit into 64 bits make the answer unsure."""
    program = Program()
    program.now = start
    for number in range(3):
        begin = program.now
        program.launch(GEMM, MS)
        program.wait()
        program.pause(gap if number == 1 else MS)
        if ranges:
            program.range(f"step {number}", begin, program.now)
    answer = program.diagnose(step_ns)
    json.dumps(answer.to_dict())
    assert answer.step is not None
    assert sum(part.ns for part in answer.ledger) == answer.step.median_ns


@pytest.mark.parametrize("far", [-(1 << 63), 1 << 62])
def test_times_whose_differences_do_not_fit_into_64_bits(far: int) -> None:
    def add_step(program: Program) -> Program:
        program.kernel(program.call(LAUNCH, far, far + 5), far + 7, far + 107)
        program.range("step 5", far, far + 200)
        return program

    answer = add_step(loop(4)).diagnose()
    assert answer.step is not None
    assert answer.step.median_ns == 3 * MS + 9 * US
    assert answer.notes[0] == "events that are more than 73 years from the origin are left out: 2"
    check_figures(answer)
    assert add_step(Program()).diagnose().step is None


def test_replays_that_are_impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (OverflowError("a time exceeds 64 bits"), MemoryError("5 GiB"), ValueError("wrong")):

        def run(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("tracekit.native.replay.Replay.run", run)
        answer = loop().diagnose()
        assert answer.status == "unsure"
        assert answer.replay_error is None
        assert answer.causes == ()
        assert answer.step is not None
        assert sum(part.ns for part in answer.ledger) == answer.step.median_ns
        assert f"the events cannot be replayed, so no savings are predicted: {error}" in answer.notes


def test_third_parties_add_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(inspection: Inspection) -> list[Cure]:
        rows = inspection.claims.take_operations(np.flatnonzero(inspection.model.match_names("my_kernel")))
        duration = inspection.model.operations.duration[rows]
        return [Cure("slow_kernel", evidence="it is slow", operations=[(rows, (duration // 2,) * 3)])]

    monkeypatch.setattr(causes, "CAUSES", dict(causes.CAUSES))
    monkeypatch.setattr(causes, "RULES", list(causes.RULES))
    monkeypatch.setattr(causes, "NAMES", (*causes.NAMES, "slow_kernel"))
    causes.register(causes.Cause("slow_kernel", "It is slow.", {"any": "make it faster"}, "time it"), rule)
    program = Program()
    (cause,) = steps(program, 4, lambda _: program.launch("my_kernel", MS)).diagnose().causes
    assert (cause.cause, cause.change, cause.check) == ("slow_kernel", "make it faster", "time it")
    assert cause.saving.likely == pytest.approx(0.5, abs=0.01)
    assert cause.evidence.table is None
    assert cause.evidence.start_ns is None


def test_claims() -> None:
    claims = Claims(loop().model())
    assert claims.take_items(np.array([3, 1, 1])).tolist() == [1, 3]
    assert claims.take_items(np.array([1, 2])).tolist() == [2]
    assert not claims.free_items[[1, 2, 3]].any()
    rows, (low, likely, high) = claims.scale_operations(np.array([0, 1]), (0.9, 0.5, 0.1), (0, 600 * US, 2 * MS))
    assert rows.tolist() == [0, 1]
    assert (low[0], likely[0], high[0]) == (900 * US, 600 * US, MS)
    assert claims.take_operations(np.array([1, 2])).tolist() == [2]
    assert not claims.free_operations[:3].any()
    assert deduplicate(np.zeros(0, np.int64)).tolist() == []


def test_without_work_nothing_remains() -> None:
    model = loop().model()
    edit = create_unedited(model)
    edit = Edit(*(np.zeros_like(column) for column in edit[:2]), edit[2] | True, edit[3], None)
    assert ModelReplay(model).measure(edit) < 0.01 * model.duration_ns


def test_constants() -> None:
    assert operations.LONG_NS == 200 * US
    assert isinstance(diagnose(Program().rollup()), Why)
    assert HALF_GEMM != GEMM


def compiling(share: float, count: int) -> Program:
    """A capture without GPU work, in which a compiler works for a share of the time."""
    program = Program()
    for number in range(count):
        program.range(f"step {number}", number * MS, (number + 1) * MS)
        program.range("XlaCompile", number * MS, number * MS + int(share * MS))
    return program


def test_recordings_that_profilers_lack() -> None:
    program = Program()
    program.range("aten::add", 0, MS, domain="cpu_op")
    assert "ProfilerActivity.CUDA" in program.diagnose().sentence
    program.range("torchdynamo: convert_frame", 0, MS)
    (cause,) = program.diagnose().causes
    assert "torch.compile" in causes.get_change("recompilation", "pytorch")
    assert (cause.cause, cause.change) == ("first_call", causes.get_change("first_call", "pytorch"))
    assert "ProfilerActivity.CUDA" in cause.missing


def test_compilation_without_gpu_work() -> None:
    answer = compiling(0.5, 4).diagnose()
    assert answer.status == "unsure"
    assert [c.cause for c in answer.causes] == ["recompilation"]
    assert answer.together == answer.causes[0].saving.likely == 0.5
    assert answer.sentence == ("No GPU work was recorded, but ranges of a compiler take 2 ms of 4 ms: recompilation.")
    assert [c.cause for c in compiling(0.5, 1).diagnose().causes] == ["first_call"]
    assert compiling(0.2, 4).diagnose().status == "not_recorded"
    json.dumps(answer.to_dict())


def loading(share: float, count: int, loader: str = "_SingleProcessDataLoaderIter") -> Program:
    """A capture of a training on the CPU, whose data loader takes a share of each step."""
    program = Program()
    for number in range(count):
        start, middle = number * MS, number * MS + int(share * MS)
        program.range(f"ProfilerStep#{number}", start, start + MS, domain="user_annotation")
        if share:
            program.range(f"enumerate(DataLoader)#{loader}.__next__", start, middle, domain="user_annotation")
        program.range("aten::add", middle, start + MS, domain="cpu_op")
    return program


def test_data_loading_without_gpu_work() -> None:
    answer = loading(0.4, 5).diagnose()
    assert answer.status == "unsure"
    assert answer.sentence == "No GPU work was recorded, but the data loader takes 400 µs of 1 ms per step (40%)."
    (cause,) = answer.causes
    assert (cause.cause, cause.status) == ("data_loading", "unsure")
    assert (cause.saving.low, cause.saving.likely, cause.saving.high) == (0, 0.2, 0.4)
    assert answer.together == cause.after == 0.2
    assert cause.change == causes.get_change("data_loading", "pytorch")
    assert (cause.evidence.count, cause.evidence.total_ns) == (5, 2 * MS)
    json.dumps(answer.to_dict())


def test_a_data_loader_with_workers_needs_no_workers() -> None:
    (cause,) = loading(0.4, 5, "_MultiProcessingDataLoaderIter").diagnose().causes
    assert (cause.cause, cause.change) == ("data_loading", causes.get_change("more_workers", "pytorch"))
    with tk.load(FIXTURES / "tutorial" / "after.pt.trace.json.gz") as trace:
        (cause,) = (c for c in trace.why().causes if c.cause == "data_loading")
    assert cause.change == causes.get_change("more_workers", "pytorch")


@pytest.mark.parametrize(("share", "count"), [(0, 5), (0.01, 5), (0.4, 2)])
def test_no_data_loading_without_gpu_work(share: float, count: int) -> None:
    assert loading(share, count).diagnose().status == "not_recorded"


def test_answers_are_computed_once() -> None:
    rollup = loop().rollup()
    assert diagnose(rollup) is diagnose(rollup)


def test_a_replay_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelReplay, "error", 0.05)
    answer = loop().diagnose()
    assert answer.status == "unsure"
    assert "the replay of a step is off by up to 5.0%, so predictions are unreliable" in answer.notes


def test_a_rare_cause_does_not_explain_all_of_a_long_step() -> None:
    """One step loads code for a short time, and waits for a long time for another reason."""

    def body(number: int) -> None:
        if number == 4:
            program.do("cuModuleLoadData", 2 * MS)
        program.launch("my_kernel", 20 * MS if number == 4 else MS)
        program.wait()

    program = Program()
    (cause,) = [c for c in steps(program, 6, body).diagnose().causes if c.cause == "first_call"]
    assert cause.saving.likely == pytest.approx(2 / 27, abs=0.02)


@pytest.mark.slow
def test_ranks_that_cannot_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise OverflowError("a time exceeds 64 bits")

    monkeypatch.setattr("tracekit.native.replay.Replay.run", run)
    answer = straggle(count=4).diagnose()
    assert answer.status == "unsure"
    assert [rank.status for rank in answer.ranks] == ["unsure", "unsure"]
    assert "the events cannot be replayed, so no savings are predicted: a time exceeds 64 bits" in answer.notes


def test_a_cause_in_a_pause_without_a_range_has_no_rows() -> None:
    inspection = loop().inspection()
    pauses = np.flatnonzero(inspection.model.long_pauses)
    tables = {}
    for place in ("load batch", "nowhere", ""):
        cure = Cure("cpu_work", place)
        cure.items = [(pauses, (1.0, 0.5, 0.0))]
        tables[place] = [rows.table for rows in _list_rows(inspection, cure)]
    assert tables == {"load batch": ["nvtx_ranges"], "nowhere": [], "": []}
