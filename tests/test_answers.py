"""The benchmark of answers: its questions, how answers are scored, and the answers of other tools."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from tests import why_truth
from tests.benchmarks.answers import __main__ as commands
from tests.benchmarks.answers import own, page, peer_hta, peer_nsys_ai, questions, scoring
from tests.benchmarks.answers.answer_file import Answer, AnswerFile, Claim, Interval, build_answers, read_answers
from tests.benchmarks.answers.captures import LoadedCapture
from tests.conftest import FIXTURES
from tracekit.core.diagnosis.causes import CAUSES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.benchmarks.answers.questions import Question

ASKED = questions.read_questions()
STORED = sorted(path for path in page.FOLDER.glob("*.json") if path != page.SCORES)
TRUTHS = {
    f"{program.name}/{'pytorch' if '.pt.' in paths[0].name else 'nsys'}": program
    for program in why_truth.read_programs(FIXTURES / "why" / "truth.jsonl")
    for paths in program.captures
}


class EveryRow:
    """A capture that has every row, and whose ranges last all the time."""

    def count_missing(self, _table: str, _ids: Iterable[int], /) -> int:
        return 0

    def measure_overlap(self, _windows: Iterable[tuple[int, int]], _ranges: Iterable[str], /) -> float:
        return 1.0


class NoRow(EveryRow):
    """A capture without any row."""

    def count_missing(self, _table: str, ids: Iterable[int], /) -> int:
        return len(list(ids))


def answer_perfectly(question: Question) -> Answer:
    """Return the true answer."""
    if "refusal" in question.kinds:
        return Answer(question.statuses[0])
    claims = [
        state(illness.causes[0], Interval(illness.saving, illness.low, illness.high)) for illness in question.illnesses
    ]
    place = question.place or questions.TruePlace()
    claims[0] = dataclasses.replace(
        claims[0], ranges=place.ranges, kernels=tuple(k.strip("*") for k in place.kernels), rank=place.rank
    )
    return Answer("answered", tuple(claims), question.together)


def state(cause: str, saving: Interval | None = None, **attributes: Any) -> Claim:
    """Return a claim with a row of the first table of its cause."""
    evidence = ((questions.get_tables(cause)[0], (1,)),)
    return Claim(cause, questions.get_classes(cause), saving=saving, **{"evidence": evidence, **attributes})


def score(answers: dict[str, Answer], capture: scoring.Capture | None = None) -> list[scoring.Mark]:
    captures = dict.fromkeys(answers, capture or EveryRow())
    return scoring.score(ASKED, AnswerFile("tool", "1", {}, answers), captures)


def summarize(answers: dict[str, Answer]) -> dict[str, dict[str, float]]:
    return scoring.summarize(score(answers))


def select(answers: AnswerFile, asked: dict[str, Question]) -> AnswerFile:
    """Return the answers to some questions."""
    return dataclasses.replace(answers, answers={name: a for name, a in answers.answers.items() if name in asked})


def score_one(question: str, answer: Answer, kind: str, capture: scoring.Capture | None = None) -> scoring.Mark:
    return next(m for m in score({question: answer}, capture) if (m.question, m.kind) == (question, kind))


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with outputs of other tools."""
    folder = tmp_path_factory.mktemp("raw")
    finding = {"severity": "info", "label": "", "note": "", "start_ns": 0, "end_ns": 100, "provenance": {}}
    findings = [
        finding | {"label": "Critical path is gpu-compute-bound", "provenance": {"row_kind": "bound_class"}},
        finding | {"provenance": {"row_kind": "profile_insufficient_nvtx_coverage"}},
        finding
        | {
            "severity": "warning",
            "note": "Kernel 'void sgemm' is Tensor-Core eligible",
            "provenance": {"row_kind": "tc_eligible_inactive"},
        },
        finding
        | {
            "start_ns": 14306722,
            "end_ns": 17014519,
            "evidence": [{"values": {"kernel_name": "gemm"}}],
            "provenance": {"row_kind": "kernel_hotspot"},
        },
        finding | {"severity": "warning", "headroom_ms": 5e-5, "provenance": {"row_kind": "summary"}},
        finding | {"note": "Stream 7 idle — CPU: cudaStreamSynchronize (1 ms)", "provenance": {"row_kind": "per_gap"}},
        finding | {"label": "Large H2D Transfer (134.2MB)", "end_ns": None},
    ]
    (folder / "fp32.diagnose.json").write_text(json.dumps({"findings": findings}), "utf-8")
    patterns = [
        {
            "pattern": "Kernel Hotspot",
            "severity": "info",
            "evidence": "'gemm' accounts for 81% of time",
            "recommendation": "",
        },
        {
            "pattern": "GPU Bubbles (Pipeline Stalls)",
            "severity": "warning",
            "evidence": "",
            "recommendation": "DataLoader",
        },
    ]
    (folder / "fp32.rcm.json").write_text(json.dumps(patterns), "utf-8")
    healthy = [{"pattern": "No Known Anti-Patterns Detected", "severity": "info", "evidence": "", "recommendation": ""}]
    (folder / "stream_triad.rcm.json").write_text(json.dumps(healthy), "utf-8")
    for name in ("cpu_only", "empty"):
        (folder / f"{name}.diagnose.json").write_text("", "utf-8")
        text = "Cache ready\nError: This profile does not contain GPU kernel activity."
        (folder / f"{name}.diagnose.err").write_text(text, "utf-8")
    return folder


def test_every_question_is_valid_and_asks_for_a_cause_or_a_refusal() -> None:
    assert len(ASKED) >= 50
    for question in ASKED.values():
        assert question.id == f"{question.id.partition('/')[0]}/{question.form}"
        assert question.kinds[0] in ("cause", "refusal")
        assert ("place" in question.kinds) == (question.place is not None)
        assert ("together" in question.kinds) == (question.together is not None)
        assert question.statuses
        assert bool(question.illnesses) or "cause" not in question.kinds
        assert {cause for i in question.illnesses for cause in i.causes} <= set(CAUSES)
    assert sum(question.find_captures() is not None for question in ASKED.values()) >= 25


def test_the_list_of_causes_is_that_of_why() -> None:
    causes = questions.read_causes()
    assert list(causes["causes"]) == list(CAUSES)
    assert {kind for cause in causes["causes"].values() for kind in cause["classes"]} == set(causes["classes"])
    assert {t for cause in causes["causes"].values() for t in cause["tables"]} <= set(tk.schemas.table_names())
    names = [synonym for cause in causes["causes"].values() for synonym in cause["synonyms"]]
    assert len(names) == len(set(names))
    assert questions.get_name("Straggler") == questions.get_name("late rank") == "late_rank"
    assert questions.get_name("bad luck") is None


@pytest.mark.parametrize("name", TRUTHS)
def test_the_truth_is_that_of_the_captures(name: str) -> None:
    program, question = TRUTHS[name], ASKED[name]
    assert question.is_unknowable == program.is_unknowable
    assert len(question.illnesses) == len(program.illnesses)
    for asked, true in zip(question.illnesses, program.illnesses, strict=True):
        assert asked.causes == true.causes
        assert (asked.saving, asked.low, asked.high) == pytest.approx((true.saving, true.low, true.high), abs=1e-4)


def test_perfect_answers_have_full_marks() -> None:
    marks = score({name: answer_perfectly(question) for name, question in ASKED.items()})
    assert [mark for mark in marks if mark.outcome != "right"] == []
    summary = scoring.summarize(marks)
    assert summary["saving"]["error"] == 0
    assert summary["saving"]["covered"] == 1
    assert summary["saving"]["missed"] == 0
    assert summary["refusal"]["alarm"] == 0


def test_a_tool_that_always_refuses_has_only_refusals_right() -> None:
    summary = summarize(dict.fromkeys(ASKED, Answer("unsure")))
    refusals = [question for question in ASKED.values() if "refusal" in question.kinds]
    assert summary["refusal"]["right"] == sum("unsure" in question.statuses for question in refusals) > 0
    assert summary["refusal"]["silent"] == len(refusals)
    for kind in ("cause", "place", "saving", "together", "evidence"):
        assert summary[kind]["right"] == summary[kind]["wrong"] == 0
        assert summary[kind]["abstained"] > 0


def test_a_tool_that_always_claims_the_same_has_false_alarms() -> None:
    claim = state("launch_overhead", Interval(0.5, 0.0, 1.0))
    summary = summarize(dict.fromkeys(ASKED, Answer("answered", (claim,))))
    asked = [question for question in ASKED.values() if "cause" in question.kinds]
    assert summary["cause"]["right"] == sum("launch_overhead" in q.illnesses[0].causes for q in asked) > 0
    assert summary["cause"]["right"] + summary["cause"]["wrong"] == len(asked)
    assert summary["refusal"]["right"] == summary["refusal"]["silent"] == 0
    assert summary["refusal"]["alarm"] == sum("refusal" in q.kinds for q in ASKED.values())


@pytest.mark.parametrize(
    ("claim", "outcome", "listed"),
    [
        (state("precision"), "right", 1),
        (state("precision", is_sure=False), "abstained", 1),
        (Claim(None, ("compute",)), "abstained", 0),
        (state("unfused_pointwise"), "wrong", 0),
    ],
)
def test_only_the_name_of_the_cause_is_right(claim: Claim, outcome: str, listed: int) -> None:
    mark = score_one("fp32/nsys", Answer("answered", (claim,)), "cause")
    assert (mark.outcome, mark.figures) == (outcome, {"listed": listed, "class": 1})


def test_a_cause_that_is_not_first_is_listed() -> None:
    claims = (state("data_loading"), state("precision"))
    mark = score_one("fp32/nsys", Answer("answered", claims), "cause")
    assert (mark.outcome, mark.figures) == ("wrong", {"listed": 1, "class": 0})
    sixth = (*[state("data_loading")] * scoring.LISTED, state("precision"))
    assert score_one("fp32/nsys", Answer("answered", sixth), "cause").figures["listed"] == 0
    late = (state("cpu_work"), state("late_rank"))
    assert score_one("straggler/nsys", Answer("answered", late), "cause").outcome == "right"


@pytest.mark.parametrize(
    ("question", "claim", "outcome"),
    [
        ("fp32/nsys", state("precision", ranges=("forward",)), "right"),
        ("fp32/nsys", state("precision", ranges=("optimizer", "forward")), "wrong"),
        ("fp32/nsys", state("precision", kernels=("void sgemm<4>",)), "right"),
        ("fp32/nsys", state("precision", kernels=("softmax",)), "wrong"),
        ("fp32/nsys", state("precision"), "abstained"),
        ("fp32/nsys", state("precision", windows=((0, 10),)), "right"),
        ("fp32/nsys", state("data_loading", ranges=("forward",)), "abstained"),
        ("fp32/nsys", Claim(None, ("compute",), ranges=("forward",)), "right"),
        ("ddp_straggler/nsys", state("late_rank", ranges=("data",), rank=1), "right"),
        ("ddp_straggler/nsys", state("late_rank", ranges=("data",), rank=0), "wrong"),
        ("ddp_straggler/nsys", state("late_rank", ranges=("data",)), "abstained"),
    ],
)
def test_a_place_is_a_range_or_a_kernel_and_the_rank(question: str, claim: Claim, outcome: str) -> None:
    assert score_one(question, Answer("answered", (claim,)), "place").outcome == outcome


def test_savings_have_errors_and_intervals_have_scores() -> None:
    true = ASKED["fp32/nsys"].illnesses[0]

    def measure(saving: Interval) -> tuple[str, dict[str, float]]:
        mark = score_one("fp32/nsys", Answer("answered", (state("precision", saving),)), "saving")
        return mark.outcome, dict(mark.figures)

    outcome, figures = measure(Interval(true.saving - 0.1, 0.0, 1.0))
    assert outcome == "right"
    assert figures == pytest.approx({"error": 0.1, "covered": 1, "width": 1, "interval_score": 1, "missed": 0})
    outcome, figures = measure(Interval(0.2, 0.1, 0.3))
    assert outcome == "wrong"
    assert (figures["covered"], figures["interval_score"]) == (0, pytest.approx(0.2 + 20 * (true.low - 0.3)))
    assert measure(Interval(true.saving))[1].keys() == {"error", "missed"}


def test_the_savings_of_all_causes_count() -> None:
    illnesses = ASKED["app_lm/nsys"].illnesses
    claims = tuple(state(illness.causes[0], Interval(illness.saving + 0.1)) for illness in illnesses[:3])
    mark = score_one("app_lm/nsys", Answer("answered", claims, 0.5), "saving")
    assert mark.figures == pytest.approx({"error": 0.1, "missed": len(illnesses) - 3})
    assert score_one("app_lm/nsys", Answer("answered", claims, 0.5), "together").outcome == "wrong"


@pytest.mark.parametrize(
    ("question", "answer", "outcome", "alarm"),
    [
        ("stream_triad/nsys", Answer("nothing_found"), "right", 0),
        ("stream_triad/nsys", Answer("nothing_found", (state("precision", Interval(0.01)),)), "right", 0),
        ("stream_triad/nsys", Answer("nothing_found", (state("memory_bound"),)), "right", 0),
        ("stream_triad/nsys", Answer("nothing_found", (state("precision"),)), "wrong", 1),
        ("stream_triad/nsys", Answer("answered", (Claim(None, ("compute",)),)), "wrong", 0),
        ("stream_triad/nsys", Answer("answered", (Claim(None, ("host",)),)), "wrong", 1),
        ("idle_streams/nsys", Answer("answered", (state("serialized_streams"),)), "right", 0),
        ("idle_streams/nsys", Answer("answered", (state("cpu_work", is_sure=False),)), "right", 0),
        ("idle_streams/nsys", Answer("answered", (state("cpu_work"),)), "wrong", 1),
        ("cpu_only/nsys", Answer("nothing_found"), "wrong", 0),
    ],
)
def test_refusals_have_a_status_and_no_alarm(question: str, answer: Answer, outcome: str, alarm: int) -> None:
    mark = score_one(question, answer, "refusal")
    assert (mark.outcome, mark.figures["alarm"]) == (outcome, alarm)


def test_evidence_has_to_exist_in_a_table_of_the_cause() -> None:
    answer = Answer("answered", (state("precision"),))
    assert score_one("fp32/nsys", answer, "evidence").outcome == "right"
    mark = score_one("fp32/nsys", answer, "evidence", NoRow())
    assert (mark.outcome, mark.figures) == ("wrong", {"resolved": 0, "grounded": 1})
    other = Answer("answered", (state("precision", evidence=(("nvtx_ranges", (1,)),)),))
    assert score_one("fp32/nsys", other, "evidence").figures == {"resolved": 1, "grounded": 0}
    empty = Answer("answered", (state("precision", evidence=(("kernels", ()),)),))
    assert score_one("fp32/nsys", empty, "evidence").outcome == "wrong"
    coarse = Answer("answered", (Claim(None, ("compute",), evidence=(("kernels", (1,)),)),))
    assert score_one("fp32/nsys", coarse, "evidence").outcome == "right"


def test_rows_and_times_are_looked_up_in_the_capture() -> None:
    capture = LoadedCapture([FIXTURES / "why" / "fp32.nsys-rep"])
    assert capture.count_missing("kernels", [1, 2, 2]) == 0
    assert capture.count_missing("kernels", [1, -5]) == 1
    assert capture.count_missing("no such table", [1]) == 1
    assert capture.find_rows([(14306722, 17014519), (1, 2)]) == [("kernels", [1])]
    ranges = tk.load(FIXTURES / "why" / "fp32.nsys-rep").frame("nvtx_ranges").collect()
    start, end = ranges.filter(ranges["name"] == "forward").select("start_ns", "end_ns").row(0)
    assert capture.measure_overlap([(start, end)], ["forward", "step 0"]) == 1
    assert capture.measure_overlap([(start - (end - start), end)], ["forward"]) == pytest.approx(0.5)
    assert capture.measure_overlap([(start, end)], ["no such range"]) == 0
    assert capture.measure_overlap([], ["forward"]) == 0


def test_questions_without_an_answer_were_not_run() -> None:
    marks = score({"fp32/nsys": Answer("not_run")})
    assert {mark.outcome for mark in marks} == {"not_run"}
    with pytest.raises(ValueError, match="'nothing' is not the id of a question"):
        scoring.score(ASKED, AnswerFile("tool", "1", {}, {"nothing": Answer("unsure")}))


HEAD = {"schema": 1, "tool": {"name": "a", "version": "1"}, "provenance": {"command": "a", "date": "", "mapping": ""}}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([{"question": "fp32/nsys"}], "status is missing"),
        ([{"question": "fp32/nsys", "status": "perhaps"}], "'perhaps' is not one of"),
        ([{"question": "fp32/nsys", "status": "unsure"}] * 2, "answers the question 'fp32/nsys' twice"),
        ([{"question": "fp32/nsys", "status": "answered", "causes": [{"cause": "bad luck"}]}], "'bad luck' is not in"),
        ([{"question": "fp32/nsys", "status": "answered", "causes": [{}]}], "neither a cause nor a class"),
        (
            [{"question": "a", "status": "answered", "causes": [{"class": "host", "saving": {"likely": 2}}]}],
            "more than 1",
        ),
    ],
)
def test_an_invalid_file_of_answers_is_refused(answers: list[Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text(json.dumps(HEAD | {"answers": answers}), "utf-8")
    with pytest.raises(ValueError, match=message):
        read_answers(file)
    file.write_text("{", "utf-8")
    with pytest.raises(ValueError, match="is not JSON"):
        read_answers(file)


def test_an_invalid_question_is_refused(tmp_path: Path) -> None:
    line = questions.FILE.read_text("utf-8").splitlines()[0]
    file = tmp_path / "questions.jsonl"
    file.write_text(f"{line}\n{line}\n", "utf-8")
    with pytest.raises(ValueError, match=r"line 2: the id '.*' occurs twice"):
        questions.read_questions(file)
    file.write_text(json.dumps(json.loads(line) | {"kinds": ["guess"]}), "utf-8")
    with pytest.raises(ValueError, match=r"line 1: .* 'guess' is not one of"):
        questions.read_questions(file)


def test_the_stored_scores_are_those_of_the_stored_answers() -> None:
    """Captures beside the checkout are left out: the marks need rows and times of captures."""
    asked = {q.id: q for q in ASKED.values() if all((FIXTURES / c).exists() for c in q.captures)}
    tools = [select(read_answers(file), asked) for file in STORED]
    current = {tool["tool"]: tool for tool in page.collect(commands.score(asked, tools))}
    assert current.keys() == {tool["tool"] for tool in page.read()}
    for stored in page.read():
        chosen = [mark for mark in stored["marks"] if mark["question"] in asked]
        assert len(chosen) >= 50
        assert current[stored["tool"]] == {**stored, "marks": chosen}


def test_findings_of_nsys_ai_become_causes_and_classes(raw: Path) -> None:
    asked = [ASKED[name] for name in ("fp32/nsys", "cpu_only/nsys", "empty/nsys", "fp32/pytorch")]
    content = peer_nsys_ai.map_diagnose(asked, raw)
    fp32, cpu_only, empty = content["answers"]
    assert [claim.get("cause") or claim["class"] for claim in fp32["causes"]] == [
        *("precision", "host", "compute", "synchronization", "copy")
    ]
    assert fp32["causes"][0]["place"] == {"kernels": ["void sgemm"]}
    assert fp32["causes"][1]["saving"] == {"likely": 0.5}
    assert fp32["causes"][2]["evidence"] == [{"table": "kernels", "ids": [1]}]
    assert (cpu_only["status"], empty["status"]) == ("not_recorded", "not_applicable")
    marks = scoring.score(ASKED, build_answers(content, "raw"))
    assert [m.outcome for m in marks if m.question == "fp32/nsys"] == ["right", "right", "abstained"]
    assert [m.outcome for m in marks if m.question == "empty/nsys"] == ["right"]


def test_patterns_of_nsys_ai_become_causes_and_classes(raw: Path) -> None:
    content = peer_nsys_ai.map_root_causes([ASKED["fp32/nsys"], ASKED["stream_triad/nsys"]], raw)
    assert content["answers"] == [
        {
            "question": "fp32/nsys",
            "status": "answered",
            "causes": [{"cause": "data_loading"}, {"class": "compute", "place": {"kernels": ["gemm"]}}],
        },
        {"question": "stream_triad/nsys", "status": "nothing_found"},
    ]


def test_a_pattern_of_nsys_ai_without_a_meaning_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "histogram.rcm.json").write_text('[{"pattern": "New", "severity": "info"}]', "utf-8")
    with pytest.raises(ValueError, match="the pattern 'New' has no meaning"):
        peer_nsys_ai.map_root_causes([ASKED["histogram/nsys"]], tmp_path)


@pytest.mark.parametrize(
    ("analyses", "classes"),
    [
        ({"temporal": [(70, 20, 10)]}, ["host", "compute", "copy"]),
        (
            {"temporal": [(10, 20, 70)], "types": [("COMMUNICATION", 9), ("MEMORY", 8)]},
            ["communication", "compute", "host"],
        ),
        ({"temporal": [(90, 5, 5)], "idle": "kernel_wait"}, ["compute"]),
        ({"temporal": {"error": "AssertionError"}}, ["host"]),
        ({"temporal": {"error": ""}, "path": {"cpu_bound": 30.0, "gpu_compute_bound": 70.0}}, ["host", "compute"]),
        ({"temporal": [(1, 99, 0)], "late": [1]}, ["late_rank", "compute"]),
    ],
)
def test_shares_of_hta_become_classes(analyses: dict[str, Any], classes: list[str], tmp_path: Path) -> None:
    names = ("idle_time_pctg", "compute_time_pctg", "non_compute_time_pctg")
    temporal, path = analyses["temporal"], analyses.get("path")
    content = {
        "version": "0.5.0",
        "temporal": temporal if isinstance(temporal, dict) else [dict(zip(names, temporal[0], strict=True))],
        "idle": [{"idle_category": analyses.get("idle", "host_wait"), "idle_time": 5.0}],
        "kernels": {
            "types": [{"kernel_type": t, "sum": s} for t, s in analyses.get("types", ())],
            "kernels": [{"name": n, "kernel_type": "COMPUTATION"} for n in ("others", "gemm")],
        },
        "critical_path": None if path is None else {"ok": True, "steps": 3, "summary": {"": 0.0, **path}},
        "stragglers": analyses.get("late", {"error": "ValueError"}),
    }
    (tmp_path / "fp32.json").write_text(json.dumps(content), "utf-8")
    answers = peer_hta.map_analyses([ASKED["fp32/pytorch"], ASKED["fp32/nsys"], ASKED["video/pytorch"]], tmp_path)
    [row] = answers["answers"]
    assert [claim.get("cause") or claim["class"] for claim in row["causes"]] == classes
    compute = [claim for claim in row["causes"] if claim.get("class") == "compute"]
    assert all(claim["place"] == {"kernels": ["gemm"]} for claim in compute)
    assert build_answers(answers, "hta").answers["fp32/pytorch"].status == "answered"


def test_why_answers_in_the_form_of_all_tools_as_it_did_when_its_answers_were_stored() -> None:
    asked = {name: ASKED[name] for name in ("histogram/nsys", "scratch/nsys", "stream_triad/nsys", "cpu_only/nsys")}
    content = own.answer_questions(asked.values(), "2026-11-28")
    assert questions.find_errors(content, questions.FOLDER / "answers.schema.json") == []
    tools = [build_answers(content, "why"), select(read_answers(page.FOLDER / "tracekit-why.json"), asked)]
    current, stored = (marks for _, marks in commands.score(asked, tools))
    assert {mark.outcome for mark in current} == {"right"}
    assert [(mark.question, mark.kind) for mark in current] == [
        *[("histogram/nsys", kind) for kind in ("cause", "place", "saving", "evidence")],
        *[("scratch/nsys", kind) for kind in ("cause", "saving", "evidence")],
        *[("stream_triad/nsys", "refusal"), ("cpu_only/nsys", "refusal")],
    ]
    outcomes = [[(mark.question, mark.kind, mark.outcome) for mark in marks] for marks in (current, stored)]
    assert outcomes[0] == outcomes[1], "run python -m tests.benchmarks.answers ask FILE, and then publish"


def test_answers_are_written_and_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str], raw: Path) -> None:
    file = tmp_path / "answers.json"
    assert commands.main("map", "nsys-ai-root-cause", str(raw), str(file)) == 0
    assert commands.main("score", str(file)) == 0
    printed = capsys.readouterr().out
    assert "| cause: named first | 0 of 1 |" in printed
    assert "  fp32/nsys cause: wrong" in printed
    assert commands.main("map", "no-such-tool", str(raw), str(file)) == 2
    with pytest.raises(ValueError, match=r"contradict answers\.schema\.json"):
        commands.write(file, HEAD)
