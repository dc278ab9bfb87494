"""The tables of docs/answers.md, from the stored scores."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.answers import questions, scoring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tests.benchmarks.answers.answer_file import AnswerFile
    from tests.benchmarks.answers.questions import Question

FOLDER = Path(__file__).parent / "results"
SCORES = FOLDER / "scores.json"


def collect(scored: Iterable[tuple[AnswerFile, Sequence[scoring.Mark]]]) -> list[dict[str, Any]]:
    """Return the marks of each tool, with where its answers come from, as JSON objects."""
    return [
        {
            "tool": tool.name,
            "version": tool.version,
            "provenance": dict(tool.provenance),
            "marks": [_round(asdict(mark)) for mark in marks],
        }
        for tool, marks in scored
    ]


def _round(mark: dict[str, Any]) -> dict[str, Any]:
    return mark | {"figures": {name: round(value, 4) for name, value in sorted(mark["figures"].items())}}


def write(scored: Iterable[tuple[AnswerFile, Sequence[scoring.Mark]]]) -> None:
    """Write the scores that the page shows, one mark per line."""
    blocks = []
    for tool in collect(scored):
        head = {key: value for key, value in tool.items() if key != "marks"}
        lines = ",\n".join(json.dumps(mark) for mark in tool["marks"])
        blocks.append(json.dumps(head, ensure_ascii=False)[:-1] + f', "marks": [\n{lines}\n]}}')
    SCORES.write_text("[\n" + ",\n".join(blocks) + "\n]\n", "utf-8")


def read() -> list[dict[str, Any]]:
    """Return the stored scores."""
    scores: list[dict[str, Any]] = json.loads(SCORES.read_text("utf-8"))
    return scores


def build_table(tools: Sequence[Mapping[str, Any]], is_counted: Callable[[Question], bool]) -> list[str]:
    """Return the lines of a table with one column per tool, for the questions that count.

    Tools that cannot read any of these captures are left out.
    """
    asked = questions.read_questions()
    summaries = []
    for tool in tools:
        marks = [scoring.Mark(**mark) for mark in tool["marks"] if is_counted(asked[mark["question"]])]
        if any(mark.outcome != "not_run" for mark in marks):
            summaries.append((f"{tool['tool']} {tool['version']}", scoring.summarize(marks)))
    lines = ["| measure | " + " | ".join(name for name, _ in summaries) + " |", "|" + " --- |" * (len(summaries) + 1)]
    for label, read_cell in _MEASURES.items():
        cells = [read_cell(summary) for _, summary in summaries]
        if any(cells):
            lines.append(f"| {label} | " + " | ".join(cell or "–" for cell in cells) + " |")
    return lines


def build_question_table(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table with one row per question and one column per tool: the marks of each kind."""
    asked = questions.read_questions()
    signs = {"right": "✓", "wrong": "✗", "abstained": "–", "not_run": ""}
    marks = [{(m["question"], m["kind"]): signs[m["outcome"]] for m in tool["marks"]} for tool in tools]
    lines = [
        "| question | true | kinds | " + " | ".join(tool["tool"] for tool in tools) + " |",
        "|" + " --- |" * (3 + len(tools)),
    ]
    for question in asked.values():
        true = ", ".join(f"`{i.causes[0]}`" for i in question.illnesses) or " or ".join(
            f"`{s}`" for s in question.statuses
        )
        cells = [" ".join(filter(None, (m.get((question.id, kind), "") for kind in question.kinds))) for m in marks]
        lines.append(f"| {question.id} | {true} | {', '.join(question.kinds)} | " + " | ".join(cells) + " |")
    return lines


def _count(kind: str, figure: str = "right") -> Callable[[Mapping[str, Mapping[str, float]]], str]:
    """Return a function that formats how many of the questions that were run have an outcome or a figure."""

    def read_cell(summary: Mapping[str, Mapping[str, float]]) -> str:
        values = summary.get(kind)
        run = 0.0 if values is None else values["right"] + values["wrong"] + values["abstained"]
        return "" if values is None or not run else f"{values.get(figure, 0.0):.0f} of {run:.0f}"

    return read_cell


def _percent(kind: str, figure: str) -> Callable[[Mapping[str, Mapping[str, float]]], str]:
    def read_cell(summary: Mapping[str, Mapping[str, float]]) -> str:
        value = summary.get(kind, {}).get(figure)
        return "" if value is None else f"{value:.1%}"

    return read_cell


_MEASURES: dict[str, Callable[[Mapping[str, Mapping[str, float]]], str]] = {
    "cause: named first": _count("cause"),
    "cause: named among the first five": _count("cause", "listed"),
    "cause: the first statement has the right class": _count("cause", "class"),
    "cause: another one named": _count("cause", "wrong"),
    "place": _count("place"),
    "place: another one named": _count("place", "wrong"),
    "saving: within 20 points": _count("saving"),
    "saving: none stated": _count("saving", "abstained"),
    "saving: median error": _percent("saving", "error"),
    "saving: intervals that contain the saving of a run": _percent("saving", "covered"),
    "saving: median width of intervals": _percent("saving", "width"),
    "saving: mean score of intervals (less is better)": _percent("saving", "interval_score"),
    "saving of all causes: within 20 points": _count("together"),
    "refusal: right status": _count("refusal"),
    "refusal: no cause claimed": _count("refusal", "silent"),
    "refusal: false alarms": _count("refusal", "alarm"),
    "evidence: rows exist, in tables of the cause": _count("evidence"),
    "evidence: none": _count("evidence", "abstained"),
}
