"""Score answers to questions about captures with known causes.

``python -m tests.benchmarks.answers`` asks ``tracekit why``, scores its answers, and prints the table.
``… score FILE…`` scores files of answers in the form of ``answers.schema.json``. ``… ask FILE`` writes the answers of
``tracekit why``. ``… map TOOL FOLDER FILE`` turns the raw output of another tool into such a file, and
``… publish`` scores the files in ``results`` and writes ``results/scores.json``, from which docs/answers.md is made.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.answers import own, page, peer_hta, peer_nsys_ai, questions, scoring
from tests.benchmarks.answers.answer_file import AnswerFile, build_answers, read_answers
from tests.benchmarks.answers.captures import LoadedCapture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.benchmarks.answers.questions import Question

MAPPINGS: dict[str, Callable[[Iterable[Question], Path], dict[str, Any]]] = {
    "nsys-ai-diagnose": peer_nsys_ai.map_diagnose,
    "nsys-ai-root-cause": peer_nsys_ai.map_root_causes,
    "hta": peer_hta.map_analyses,
}


def main(command: str = "", *arguments: str) -> int:
    """Run a command of this module, and return the exit status."""
    asked = questions.read_questions()
    match command, *arguments:
        case ["", *_]:
            print(*compare(asked, [build_answers(ask(asked), "tracekit why")]), sep="\n")
        case ["score", *files] if files:
            print(*compare(asked, [read_answers(Path(file)) for file in files]), sep="\n")
        case ["ask", file]:
            write(Path(file), ask(asked))
        case ["map", tool, folder, file] if tool in MAPPINGS:
            write(Path(file), MAPPINGS[tool](asked.values(), Path(folder)))
        case ["publish"]:
            files = [path for path in page.FOLDER.glob("*.json") if path != page.SCORES]
            own_first = sorted(files, key=lambda path: (not path.stem.startswith("tracekit"), path.stem))
            page.write(score(asked, [read_answers(path) for path in own_first]))
        case _:
            print(__doc__)
            return 2
    return 0


def ask(asked: dict[str, Question]) -> dict[str, Any]:
    """Return the answers of ``tracekit why`` as a JSON object."""
    return own.answer_questions(asked.values(), dt.datetime.now(dt.UTC).date().isoformat())


def write(path: Path, content: dict[str, Any]) -> None:
    """Write answers, one per line, after they were checked."""
    errors = questions.find_errors(content, questions.FOLDER / "answers.schema.json")
    if errors:
        raise ValueError(f"the answers contradict answers.schema.json: {'; '.join(errors[:5])}")
    build_answers(content, path.name)
    head = {key: value for key, value in content.items() if key != "answers"}
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in content["answers"])
    text = json.dumps(head, ensure_ascii=False)[:-1] + f', "answers": [\n{lines}\n]}}\n'
    path.write_text(text, "utf-8")


def score(asked: dict[str, Question], tools: list[AnswerFile]) -> list[tuple[AnswerFile, list[scoring.Mark]]]:
    """Return the marks of each tool. Captures that are on this machine are read once."""
    captures = {}
    for question in asked.values():
        paths = question.find_captures()
        if paths is not None and "cause" in question.kinds:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                captures[question.id] = LoadedCapture(paths)
    return [(tool, scoring.score(asked, tool, captures)) for tool in tools]


def compare(asked: dict[str, Question], tools: list[AnswerFile]) -> list[str]:
    """Return the lines of a table with a column per tool, and those of the answers that are not right."""
    scored = score(asked, tools)
    lines = page.build_table(page.collect(scored), lambda _: True)
    for tool, marks in scored:
        counted = [mark for mark in marks if mark.outcome in ("wrong", "abstained")]
        lines += ["", f"{tool.name} {tool.version}, not right:"]
        lines += [f"  {mark.question} {mark.kind}: {mark.outcome}" for mark in counted] or ["  none"]
    return lines


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
