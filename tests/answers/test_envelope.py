"""Every answer has the declared form, whatever the capture, and can be read back as objects."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
import tracekit as tk
from schemas.generate import answer_schema, contract
from tests.builders.check_runs import make_runs
from tests.conftest import FIXTURES
from tests.test_conformance import EXPORTS, FOLDERS, REPORTS, TRACES
from tracekit import schemas
from tracekit.answers import ENVELOPE_VERSION, Envelope, answer, answer_check, answer_diff, answer_what_if
from tracekit.answers.envelope import choose_status
from tracekit.errors import SchemaError, TracekitError, UnknownFormatError
from tracekit.registry import analyses
from tracekit.sets.comparison import Summarizer, write_baseline

FILES = [
    *(*EXPORTS, *REPORTS, *FOLDERS, *TRACES),
    *sorted((FIXTURES / "why").glob("*.nsys-rep")),
    *sorted((FIXTURES / "ncu").glob("*.csv")),
    *sorted((FIXTURES / "ncu").glob("*.ncu-rep")),
    *sorted((FIXTURES / "tensorflow").glob("*.pb")),
]
AMP = FIXTURES / "train_amp.sqlite"
TRIAD = FIXTURES / "why" / "stream_triad.nsys-rep"


@functools.cache
def get_validator() -> jsonschema.Draft202012Validator:
    """Return the validator of the envelope."""
    schema = json.loads(answer_schema.FILE.read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@functools.cache
def get_row_validator(name: str) -> jsonschema.Draft202012Validator:
    """Return the validator of the rows of a table or result, as ``tracekit schema NAME --format json`` prints it."""
    kind, _, rest = name.partition(".")
    if not rest:
        declared = schemas.table(kind)
    else:
        analysis_name, _, result = rest.partition(".")
        analysis = analyses.get_analysis(analysis_name, kind)
        declared = next(r for r in analysis.results if r.name == (result or analysis_name))
    schema = schemas.build_json_schema(declared, name)
    return jsonschema.Draft202012Validator(schema if rest else {**schema, "required": []})  # columns can be chosen


def check(envelope: Envelope) -> dict[str, Any]:
    """Check an envelope against its JSON Schema and those of its rows, and that it is the same after it was read."""
    values: dict[str, Any] = json.loads(json.dumps(envelope.to_dict(), allow_nan=False))
    get_validator().validate(values)
    assert Envelope.from_dict(values) == envelope
    for result in values["results"]:
        names = [column["name"] for column in result["columns"]]
        assert len(result["rows"]) <= result["row_count"]
        assert result["evidence"] == [] or len(result["evidence"]) == len(result["rows"])
        assert (result["status"] == "answered") == bool(result["rows"])
        assert result["rows"] or result["reason"]
        for row in result["rows"]:
            assert list(row) == names
            get_row_validator(result["schema"]).validate({name: v for name, v in row.items() if name != "duration_ns"})
        for ids in filter(None, result["evidence"]):
            assert 0 < len(ids["ids"]) <= ids["count"]
            assert [ids["column"]] == list(schemas.table(ids["table"]).key)
    assert values["status"] == "answered" or values["reason"] or values["sentence"]
    return values


@pytest.mark.many(1)
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_all_analyses_of_a_capture_have_the_declared_form(path: Path) -> None:
    with tk.load(path) as trace:
        for kind in (analyses.REPORT, analyses.RULE):
            check(answer(trace, list(analyses.list_built_in_analyses(kind)), limit=3))
        for question in ("why", "info"):
            check(answer(trace, question))
        for table in ("kernels", "nvtx_ranges", "ops", "ncu_launches"):
            check(answer(trace, table, limit=2))


@pytest.mark.slow
@pytest.mark.many(2)
@pytest.mark.parametrize("name", analyses.list_built_in_analyses(analyses.RECIPE))
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_recipes_have_the_declared_form(name: str) -> None:
    required = {"file": "metrics", "metric": "SM Active", "device": "0"}
    declared = analyses.get_analysis(name, analyses.RECIPE)
    options = {
        o.name: required.get(o.name, o.choices[0] if o.choices else "1") for o in declared.options if o.is_required
    }
    with tk.load_many(FIXTURES / "ranks") as traces:
        check(answer(traces, name, kind="recipe", options=options, limit=3))


def test_differences_and_predictions_have_the_declared_form(tmp_path: Path) -> None:
    values = check(answer_diff(AMP, FIXTURES / "ddp2.sqlite", by=["copies"]))
    assert [each["side"] for each in values["inputs"]] == ["a", "b"]
    assert values["status"] == "unsure"  # the captures differ, but have too few iterations
    assert values["reason"].startswith("not tested")
    summary = Summarizer(("kernels", "copies")).summarize(AMP)
    baseline = write_baseline(summary, tmp_path / "baseline.json", overwrite=False)
    values = check(answer_diff(baseline, AMP, by=["kernels", "copies"], limit=2))
    assert values["status"] == "answered"
    assert values["inputs"][0]["format"] == "tracekit-baseline"
    assert values["inputs"][0]["steps"]["count"] == 3
    values = check(answer_what_if(AMP, ["kernel * x0.5", "cause:launch_overhead"]))
    assert values["question"]["names"] == ["kernel * x0.5", "cause:launch_overhead"]
    assert [edit["edit"] for edit in values["answer"]["edits"]] == values["question"]["names"]


def test_a_check_has_the_declared_form(tmp_path: Path) -> None:
    saved = write_baseline(make_runs(2, 1), tmp_path / "runs.json", overwrite=False)
    sides = ([saved, FIXTURES / "ranks"], AMP)
    envelope = answer_check(*sides, fail_if="kernel_time > 5%", by=["kernels"], limit=1, one_run=True)
    values = check(envelope)
    assert [(each["side"], each["format"], each["rank"]) for each in values["inputs"]] == [
        ("a", "tracekit-baseline", None),
        ("a", "nsys-rep", 0),
        ("a", "nsys-rep", 1),
        ("b", "nsys-sqlite", None),
    ]
    assert [(row[0], row[1], row[-1]) for row in envelope.results[0].rows] == [
        ("a", 1, 0),
        ("a", 2, 0),
        ("a", 3, 1),
        ("b", 1, 3),
    ]
    assert [ids is None for ids in envelope.results[0].evidence] == [True, True, True, False]
    with pytest.raises(SchemaError, match="the outcome of the check is 'passed', but it must be 'untestable'"):
        Envelope.from_dict({**values, "answer": {**values["answer"], "outcome": "passed"}})


def test_an_answer_of_several_ranks_names_each_capture() -> None:
    with tk.load_many(FIXTURES / "ranks") as traces:
        values = check(answer(traces, ["cuda_gpu_kern_sum", "mpi_event_sum"], limit=1))
    assert [each["rank"] for each in values["inputs"]] == [0, 1]
    assert len({each["content_id"] for each in values["inputs"]}) == 2
    assert [row["rank"] for row in values["results"][0]["rows"]] == [0, 1]
    assert [ids["rank"] for ids in values["results"][0]["evidence"]] == [0, 1]
    assert values["coverage"]["captures_read"] == 2


def test_an_answer_states_what_was_read() -> None:
    values = check(answer(AMP, "cuda_gpu_kern_sum", limit=1))
    (capture,) = values["inputs"]
    assert capture["steps"] == {"name": "Batch *", "count": 3, "warm_up": 1, "covered": 1.0}
    assert capture["devices"] == ["NVIDIA H200", "NVIDIA H200"]
    assert capture["content_id"] == "sha256:cf97ec4b4a9b572cd69c68625ef7a328"
    assert values["coverage"]["tables"] == {"kernels": 334}
    assert values["coverage"]["undecoded"]["META_DATA_CAPTURE"] == 89
    (result,) = values["results"]
    assert result["row_count"] == 47
    assert result["columns"][1] == {
        "name": "Total Time (ns)",
        "type": "int64",
        "unit": "ns",
        "doc": "Sum of the durations.",
    }


def test_evidence_can_be_looked_up() -> None:
    with tk.load(AMP) as trace:
        (result,) = answer(trace, "cuda_gpu_kern_sum").results
        kernels = trace.frame("kernels", names="string").collect()
    for row, ids in zip(result.frame().iter_rows(named=True), result.evidence, strict=True):
        assert ids is not None
        chosen = kernels.filter(pl.col(ids.column).is_in(ids.ids))
        assert set(chosen["name"]) == {row["Name"]}
        assert ids.count == row["Instances"]
        if ids.count == len(ids.ids):
            assert (chosen["end_ns"] - chosen["start_ns"]).sum() == row["Total Time (ns)"]


@pytest.mark.parametrize("name", ["train_amp.sqlite", "osrt_libs.nsys-rep", "mpi_rank0.sqlite", "um.sqlite"])
@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
def test_the_rows_of_evidence_are_as_many_as_a_report_counts(name: str) -> None:
    """A report of single events is about one row each, unless two events have the same times and the same name."""
    checked = 0
    with tk.load(FIXTURES / name) as trace:
        for analysis in analyses.list_built_in_analyses(analyses.REPORT).values():
            if not analysis.evidence:
                continue
            (result,) = answer(trace, analysis.name, kind="report").results
            counts = {"Instances", "Num Calls", "Count"} & {column.name for column in result.columns}
            rows = result.frame()
            expected = (
                rows[counts.pop()] if counts else rows.select(pl.len().over(rows.columns).alias("copies")).to_series()
            )
            for count, ids in zip(expected, result.evidence, strict=False):
                assert ids is None or ids.count == count, analysis.name
                checked += ids is not None
    assert checked > 10


@pytest.mark.parametrize(
    ("path", "question", "status"),
    [
        (AMP, "cuda_gpu_kern_sum", "answered"),
        (AMP, "osrt_sum", "not_recorded"),
        (AMP, "gpu_gaps", "nothing_found"),
        (AMP, "ncu_launches", "not_applicable"),
        (TRIAD, "why", "nothing_found"),
        (FIXTURES / "chrome_trace" / "slices.json", "cuda_gpu_kern_sum", "unsure"),
        (FIXTURES / "memory_snapshot" / "ring.pickle", "cuda_api_sum", "not_applicable"),
    ],
)
def test_a_status_states_why_there_are_no_rows(path: Path, question: str, status: str) -> None:
    values = check(answer(path, question))
    assert values["status"] == status
    if status == "not_recorded":
        assert "record" in values["hint"]


def test_an_answer_of_several_results_is_answered_if_one_of_them_is() -> None:
    assert choose_status(["not_recorded", "answered", "unsure"]) == "answered"
    assert choose_status(["not_applicable", "nothing_found"]) == "nothing_found"
    assert choose_status([]) == "nothing_found"


def test_questions_that_do_not_exist_are_errors() -> None:
    with pytest.raises(UnknownFormatError, match="unknown question 'cuda_gpu_kern_sm'") as raised:
        answer(AMP, "cuda_gpu_kern_sm")
    assert "cuda_gpu_kern_sum" in str(raised.value)
    with pytest.raises(TracekitError, match="answered separately"):
        answer(AMP, ["cuda_gpu_kern_sum", "gpu_gaps"])
    with pytest.raises(TracekitError, match="recipes need captures in files"):
        answer(tk.Trace.from_tables({}), "cuda_gpu_kern_sum", kind="recipe")


def test_objects_that_are_no_envelopes_are_rejected() -> None:
    values = answer(AMP, "cuda_gpu_kern_sum", limit=1).to_dict()
    for broken, message in (
        ({}, "version 2, but None"),
        ([], "version 2, but None"),
        ({**values, "schema": ENVELOPE_VERSION + 1}, "version 2, but 3"),
        ({**values, "question": None}, "NoneType"),
        ({**values, "status": "fine"}, "'status'"),
        ({**values, "warnings": "none"}, "'warnings'"),
        ({**values, "more": 1}, "no field 'more'"),
        ({k: v for k, v in values.items() if k != "coverage"}, "lacks the field 'coverage'"),
        ({**values, "inputs": [{**values["inputs"][0], "devices": [1]}]}, "'devices'"),
        ({**values, "results": [{**values["results"][0], "rows": [{}]}]}, "lacks a column"),
        ({**values, "answer": {"sentence": ""}}, "has no answer"),
    ):
        with pytest.raises(SchemaError, match=message):
            Envelope.from_dict(json.loads(json.dumps(broken)))


def test_a_change_of_a_column_breaks_the_contract() -> None:
    before = contract.read_file()
    assert contract.list_changes(before, contract.build()) == []
    for change, message in (
        (lambda c: c["columns"]["kernels"].pop("start_ns"), "kernels.start_ns is missing: raise SCHEMA_VERSION"),
        (
            lambda c: c["columns"]["kernels"].update(start_ns="int64 us"),
            "kernels.start_ns is int64 us, but was int64 ns",
        ),
        (lambda c: c["fields"]["Envelope"].pop("status"), "Envelope.status is missing: raise ENVELOPE_VERSION"),
    ):
        after = copy.deepcopy(before)
        change(after)
        (problem,) = contract.list_changes(before, after)
        assert problem.startswith(message)
    after["schema"] += 1
    assert contract.list_changes(before, after) == []
    added = copy.deepcopy(before)
    added["columns"]["kernels"]["color"] = "string"
    kinds = json.loads(before["fields"]["Envelope"]["answer"])["anyOf"]
    added["fields"]["Envelope"]["answer"] = json.dumps({"anyOf": [*kinds, {"$ref": "#/$defs/Other"}]})
    assert contract.list_changes(before, added) == []
    for fewer in ({"anyOf": kinds[1:]}, {"type": "string"}):
        added["fields"]["Envelope"]["answer"] = json.dumps(fewer)
        (problem,) = contract.list_changes(before, added)
        assert problem.startswith("Envelope.answer is ")
