"""A client of the SDK calls every tool on captures of several profilers. Errors are sentences, and limits hold."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schemas.generate import answer_schema
from tests.conftest import FIXTURES, examples
from tests.mcp.clients import Caller, serve
from tracekit.answers import Envelope
from tracekit.errors import TracekitError
from tracekit.mcp.paging import CHARACTERS_PER_TOKEN, shorten_strings
from tracekit.mcp.private_text import PrivateTextMask
from tracekit.mcp.questions import Questioner, QuestionLimits
from tracekit.mcp.roots import AllowedFolders
from tracekit.mcp.server import TOOLS

CAPTURES = [
    "train_amp.nsys-rep",
    "train_amp.sqlite",
    *sorted(str(p.relative_to(FIXTURES)) for p in (FIXTURES / "kineto").glob("*.pt.trace.json*"))[:1],
    "rocm/train_results.db",
    *sorted(str(p.relative_to(FIXTURES)) for p in (FIXTURES / "xplane").rglob("*.pb"))[:1],
]
QUESTIONS: dict[str, dict[str, Any]] = {
    "open_capture": {},
    "explain_slow_step": {},
    "explain_step": {},
    "top_work": {"by": "kernel"},
    "timeline_slice": {"start_ns": 0, "end_ns": 2**62, "limit": 5},
    "look_up_rows": {"table": "kernels", "ids": [0, 1, 2]},
    "query": {"sql": "SELECT count(*) AS n, sum(end_ns - start_ns) AS ns FROM kernels"},
    "run_analysis": {"name": "cuda_gpu_kern_sum"},
    "how_to_record": {},
}


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with serve(FIXTURES) as caller:
        yield caller


@functools.cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(answer_schema.FILE.read_text("utf-8")))


def check_envelope(page: dict[str, Any]) -> Envelope:
    """The answer of a first page is an envelope, also if it is cut, and paths are relative to the root."""
    answer = page["answer"]
    validator().validate(answer)
    assert all((FIXTURES / each["path"]).exists() for each in answer["inputs"])
    assert str(FIXTURES) not in json.dumps(page)
    return Envelope.from_dict(answer)


def test_tools_are_described(caller: Caller) -> None:
    tools = caller.portal.call(caller.client.list_tools).tools
    assert [tool.name for tool in tools] == list(TOOLS)
    for tool in tools:
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.open_world_hint is False
        assert all("description" in p for n, p in tool.input_schema["properties"].items()), tool.name
    assert {*QUESTIONS, "predict", "compare", "list_captures", "next_page"} == set(TOOLS)


@pytest.mark.parametrize("capture", CAPTURES)
def test_every_tool_answers_on_every_capture(caller: Caller, capture: str) -> None:
    for tool, arguments in QUESTIONS.items():
        page = caller.ask(tool, capture=capture, **arguments)
        envelope = check_envelope(page)
        assert envelope.inputs[0].path == capture, tool
        assert measure(page) <= 8000 * CHARACTERS_PER_TOKEN, tool
    predicted = caller.call("predict", {"capture": capture, "edits": ["kernel * x0.5"]})
    if predicted.is_error:  # the capture has no steady steps
        assert re.search(r"matches nothing|no .*step|Hint", predicted.content[0].text)
    else:
        assert check_envelope(predicted.structured_content).question.command == "what-if"


def measure(page: dict[str, Any]) -> int:
    return len(json.dumps(page, ensure_ascii=True, separators=(",", ":")))


def test_answers_have_the_values_of_the_library(caller: Caller) -> None:
    why = caller.ask("explain_slow_step", capture="train_amp.sqlite")["answer"]
    assert sum(part["ns"] for part in why["answer"]["ledger"]) == why["answer"]["step"]["median_ns"]
    rows = caller.ask(
        "look_up_rows", capture="train_amp.sqlite", table="kernels", ids=[137, 53], columns=["kernel_id", "start_ns"]
    )
    assert rows["answer"]["results"][0]["rows"] == [
        {"kernel_id": 53, "start_ns": 332_168_196},
        {"kernel_id": 137, "start_ns": 481_564_040},
    ]
    step = caller.ask("explain_step", capture="train_amp.sqlite", step=2)["answer"]
    ledger, parts = step["results"][1]["rows"], step["results"][0]["rows"]
    assert {row["Step"] for row in ledger} == {2}
    assert sum(row["Time (ns)"] for row in ledger) == parts[0]["Duration (ns)"]


def test_two_captures_are_compared(caller: Caller) -> None:
    page = caller.ask("compare", a="train_amp.sqlite", b="train_amp.sqlite", by=["kernels"], limit=3)
    envelope = check_envelope(page)
    assert [each.side for each in envelope.inputs] == ["a", "b"]
    assert {row[-1] for row in envelope.results[0].rows} or envelope.sentence


def test_captures_are_listed(caller: Caller) -> None:
    listed = caller.ask("list_captures", name_contains="train_amp.")["answer"]
    assert {(each["path"], each["format"]) for each in listed["captures"]} == {
        ("train_amp.nsys-rep", "nsys-rep"),
        ("train_amp.sqlite", "nsys-sqlite"),
    }
    assert listed["is_complete"] is True


def test_a_folder_of_ranks_is_one_capture(caller: Caller) -> None:
    envelope = check_envelope(caller.ask("open_capture", capture="ranks"))
    assert len(envelope.inputs) > 1
    assert all(each.path.startswith("ranks/") for each in envelope.inputs)


def test_slices_have_the_longest_rows_first(caller: Caller) -> None:
    page = caller.ask(
        "timeline_slice", capture="train_amp.sqlite", start_ns=0, end_ns=2**62, tables=["kernels"], limit=7
    )
    table = page["answer"]["results"][0]
    durations = [row["duration_ns"] for row in table["rows"]]
    assert durations == sorted(durations, reverse=True)
    assert len(durations) == 7
    assert table["row_count"] > 7


def test_pages_contain_the_whole_answer(caller: Caller) -> None:
    question = {"start_ns": 0, "end_ns": 2**62, "tables": ["kernels"], "limit": 300}
    whole = create_questioner(FIXTURES).answer(
        "timeline_slice", {"capture": str(FIXTURES / "train_amp.sqlite"), **question}
    )
    page = caller.ask("timeline_slice", capture="train_amp.sqlite", **question)
    check_envelope(page)
    assert page["omitted"][0]["path"] == "/results/0/rows"
    rows = page["answer"]["results"][0]["rows"]
    pages = 1
    while page["next_page"]:
        page = caller.ask("next_page", handle=page["next_page"])
        assert measure(page) <= 8000 * CHARACTERS_PER_TOKEN
        assert (page["answer"]["path"], page["answer"]["from"]) == ("/results/0/rows", len(rows))
        rows += page["answer"]["items"]
        pages += 1
    assert rows == shorten_strings(whole["results"][0]["rows"])
    assert len(rows) == 300
    assert pages > 3


def test_errors_are_sentences(caller: Caller) -> None:
    amp = "train_amp.sqlite"
    assert "did you mean" in caller.fail("run_analysis", capture=amp, name="cuda_gpu_kern_sun").lower()
    assert "no column 'nam'" in caller.fail("look_up_rows", capture=amp, table="kernels", ids=[1], columns=["nam"])
    assert "no argument 'x'" in caller.fail("open_capture", capture=amp, x=1)
    assert "no tool 'delete'" in caller.fail("delete")
    assert "ask the question again" in caller.fail("next_page", handle="unknown")
    assert "no step 77" in caller.fail("explain_step", capture=amp, step=77)
    assert "is empty" in caller.fail("timeline_slice", capture=amp, start_ns=5, end_ns=5)
    assert "no file or folder" in caller.fail("open_capture", capture="../pyproject.toml")
    assert "Traceback" not in caller.fail("open_capture", capture="README.md")
    assert str(FIXTURES) not in caller.fail("open_capture", capture="README.md")


def test_resources_describe_answers(caller: Caller) -> None:
    listed = caller.portal.call(caller.client.list_resources).resources
    texts = {str(r.uri): caller.portal.call(caller.client.read_resource, str(r.uri)).contents[0].text for r in listed}
    assert texts["tracekit://schema/answer"] == answer_schema.FILE.read_text("utf-8")
    assert "\nkernels: " in texts["tracekit://tables"]
    assert "report cuda_gpu_kern_sum: " in texts["tracekit://analyses"]
    assert "data_loading: " in texts["tracekit://causes"]
    assert "explain_slow_step" in texts["tracekit://guide"] == caller.client.instructions
    result = caller.ask("top_work", capture="train_amp.sqlite", limit=1)["answer"]["results"][0]
    schema = caller.portal.call(caller.client.read_resource, f"tracekit://schema/{result['schema']}").contents[0].text
    jsonschema.validate(result["rows"][0], json.loads(schema))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(st.text(max_size=10), each, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        "capture",
        "a",
        "b",
        "edits",
        "by",
        "limit",
        "step",
        "tables",
        "ids",
        "table",
        "column",
        "sql",
        "name",
        "kind",
        "options",
    ]
)
LIKELY = st.sampled_from(
    [
        "empty.sqlite",
        "kernels",
        ["kernels"],
        [1],
        2**63,
        -(2**70),
        1e300,
        "\ud800"[:0],
        "../..",
        "/etc/passwd",
        "SELECT 1",
        "SELECT * FROM kernels",
        "a\0b",
        "🂡" * 50,
        "cuda_gpu_kern_sum",
        "recipe",
        "kernel * x0.5",
        [[]],
        {"a": 1},
    ]
)


@settings(max_examples=examples(60), deadline=None)
@given(st.sampled_from(TOOLS), st.dictionaries(NAMES | st.text(max_size=8), LIKELY | VALUES, max_size=5))
def test_fuzzed_arguments_get_an_answer_or_an_error(caller: Caller, tool: str, arguments: dict[str, Any]) -> None:
    result = caller.call(
        tool, {"capture": "empty.sqlite", **arguments} if tool not in ("list_captures", "next_page") else arguments
    )
    text = result.content[0].text
    assert "Traceback" not in text
    assert "error in tracekit" not in text, text
    assert "root:x" not in text
    assert len(text) <= 8000 * CHARACTERS_PER_TOKEN
    if not result.is_error:
        assert set(result.structured_content) == {"answer", "omitted", "next_page"}


def create_questioner(root: Path, *, private: bool = False) -> Questioner:
    """Return what answers the questions in the worker of a server."""
    folders = AllowedFolders([root])
    mask = PrivateTextMask(folders, b"key", is_active=not private)
    return Questioner(folders, mask, QuestionLimits(60, 1 << 30))


@pytest.mark.filterwarnings("ignore::tracekit.errors.TracekitWarning")
@pytest.mark.parametrize("private", [False, True])
def test_answers_mask_private_values_unless_asked(tmp_path: Path, private: bool) -> None:
    home, token = "/home/mirabella/falcon/run.py", "ghp_" + "a1B2" * 9
    events = [
        {"ph": "X", "cat": "kernel", "name": f"gemm {home} {token}", "pid": 0, "tid": 7, "ts": 10.0, "dur": 5.0,
         "args": {"device": 0, "stream": 7, "correlation": 1}},
        {"ph": "X", "cat": "user_annotation", "name": "mail mirabella@example.org", "pid": 1, "tid": 1,
         "ts": 1.0, "dur": 50.0},
    ]  # fmt: skip
    trace = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": events}
    (tmp_path / "run.pt.trace.json").write_text(json.dumps(trace), "utf-8")
    labels = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": 1,
            "tid": 0,
            "args": {"name": "/opt/bin/python t.py --key mirabella7"},
        },
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "worker -k mirabella8"}},
        {"ph": "X", "name": "slice", "pid": 1, "tid": 1, "ts": 1.0, "dur": 5.0},
    ]
    (tmp_path / "program.json").write_text(json.dumps({"traceEvents": labels}), "utf-8")
    questioner = create_questioner(tmp_path, private=private)
    shown = ""

    def ask(question: str, capture: str = "run.pt.trace.json", **arguments: Any) -> Any:
        nonlocal shown
        answer = questioner.answer(question, {"limit": 20, **arguments, "capture": str(tmp_path / capture)})
        shown += json.dumps(answer, ensure_ascii=False)
        return answer["results"] and answer["results"][0]["rows"]

    for tool, arguments in QUESTIONS.items():
        ask(tool, **{"tables": ["kernels", "nvtx_ranges"], "kind": "report", **arguments})
    for sql in ("SELECT name FROM kernels", "SELECT name FROM nvtx_ranges", "SELECT upper(name) FROM kernels"):
        ask("query", sql=sql)
    with pytest.raises(TracekitError) as error:
        ask("query", sql="SELECT CAST(name AS INTEGER) FROM kernels")
    shown += questioner.mask_error(error.value)
    for table, name in (("processes", "python"), ("threads", "worker")):
        rows = ask("look_up_rows", "program.json", table=table, ids=[1], column="process_id", columns=["name"])
        queried = ask("query", "program.json", sql=f"SELECT name FROM {table}")
        assert private or rows == queried == [{"name": name}]
    assert "gemm" in shown
    for secret in ("mirabella", "falcon", "a1B2a1B2", "MIRABELLA"):
        assert (secret in shown) is private, secret
    assert os.fspath(tmp_path) not in shown


def test_settings_of_the_database_tell_no_folders(caller: Caller) -> None:
    for sql in ("SELECT * FROM duckdb_settings()", "SELECT reverse(value) FROM duckdb_settings()"):
        answer = json.dumps(caller.ask("query", capture="empty.sqlite", sql=sql)["answer"]["results"])
        assert not any(part in answer for part in (str(Path.cwd()), str(Path.cwd())[::-1]))
