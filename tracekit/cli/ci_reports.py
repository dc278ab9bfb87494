"""Reports of a check for CI systems: annotations of GitHub, code quality of GitLab, JUnit XML, and Markdown.

Texts of captures and baselines, such as names of kernels, never become commands, markup or mentions in a report.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

from tracekit.text import replace_surrogates, shorten_middle, to_printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tracekit.core.check import Check, CheckRow
    from tracekit.core.check.result import Outcome

_MAX_ROWS = 20
_PLAIN_CODE = re.compile(r"[^`\\|\n]*[^`\\|\n ][^`\\|\n]*")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TITLE = "tracekit check"


class TestedStatement(NamedTuple):
    """A statement that a check tested.

    Attributes:
        name: What was tested: a condition, the duration of a step, or a prediction.
        outcome: ``passed``, ``failed`` or ``untestable``.
        text: The result in one sentence.
    """

    name: str
    outcome: Outcome
    text: str


def list_statements(check: Check) -> list[TestedStatement]:
    """Return what a check tested: its conditions, or the duration of a step without conditions, and the prediction."""
    outcomes: dict[str, Outcome] = {"holds": "failed", "does_not_hold": "passed", "untestable": "untestable"}
    statements = [TestedStatement(r.text, outcomes[r.status], f"the condition {r.sentence}") for r in check.conditions]
    predicted = check.prediction
    if not statements and (check.runs_a or predicted is None):
        verdicts: dict[str, Outcome] = {"slower": "failed", "untestable": "untestable"}
        statements.append(TestedStatement("duration of a step", verdicts.get(check.verdict, "passed"), check.sentence))
    if predicted is not None:
        agreements: dict[str, Outcome] = {"below": "failed", "untestable": "untestable"}
        statements.append(
            TestedStatement("prediction", agreements.get(predicted.agreement, "passed"), predicted.sentence)
        )
    return statements


def format_github(check: Check, *, path: str) -> str:  # noqa: ARG001 - the same arguments for all reports
    """Return workflow commands of GitHub Actions, which annotate the run: one line per statement.

    Source: https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
    """
    levels = {"failed": "error", "untestable": "error", "passed": "notice"}
    lines = []
    for statement in list_statements(check):
        title = _escape_github(f"{_TITLE}: {statement.outcome}").replace(":", "%3A").replace(",", "%2C")
        lines.append(f"::{levels[statement.outcome]} title={title}::{_escape_github(statement.text)}\n")
    for row in _list_changed_rows(check)[:_MAX_ROWS]:
        if row.verdict == "slower":
            text = f"{row.level} {_shorten(row.name)}: {row.claim} ({row.interval})"
            title = _escape_github(f"{_TITLE}: slower").replace(":", "%3A")
            lines.append(f"::warning title={title}::{_escape_github(text)}\n")
    return "".join(lines)


def _escape_github(text: str) -> str:
    """Escape a message of a workflow command. A message of one line cannot contain another command."""
    escaped = to_printable(text, keep="\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return replace_surrogates(escaped).replace("##[", "#%23[")


def format_gitlab(check: Check, *, path: str) -> str:
    """Return a code quality report of GitLab, as JSON: one issue per statement that is not passed.

    Source: https://docs.gitlab.com/ci/testing/code_quality/
    """
    severities = {"failed": "major", "untestable": "minor"}
    issues = [
        {
            "description": f"{_TITLE}: {statement.outcome}: {_clean(statement.text)}",
            "check_name": "tracekit-check",
            "fingerprint": hashlib.blake2b(
                f"{path}\0{statement.name}".encode("utf-8", "surrogatepass"), digest_size=16
            ).hexdigest(),
            "severity": severities[statement.outcome],
            "location": {"path": _clean(path), "lines": {"begin": 1}},
        }
        for statement in list_statements(check)
        if statement.outcome != "passed"
    ]
    return json.dumps(issues, indent=2, ensure_ascii=True) + "\n"


def format_junit(check: Check, *, path: str) -> str:  # noqa: ARG001 - the same arguments for all reports
    """Return the statements as JUnit XML, one test case each. An untestable one is an error, and never passed."""
    statements = list_statements(check)
    counts = {outcome: str(sum(f.outcome == outcome for f in statements)) for outcome in ("failed", "untestable")}
    values = {"tests": str(len(statements)), "failures": counts["failed"], "errors": counts["untestable"]}
    suites = ET.Element("testsuites", {"name": _TITLE, **values})
    suite = ET.SubElement(suites, "testsuite", {"name": _TITLE, **values})
    elements = {"failed": "failure", "untestable": "error"}
    for statement in statements:
        case = ET.SubElement(suite, "testcase", {"classname": _TITLE, "name": _clean_xml(statement.name)})
        text = _clean_xml(statement.text)
        if statement.outcome == "passed":
            ET.SubElement(case, "system-out").text = text
        else:
            ET.SubElement(case, elements[statement.outcome], {"message": text}).text = text
    ET.indent(suites)
    return ET.tostring(suites, "unicode", xml_declaration=True) + "\n"


def format_markdown(check: Check, *, path: str) -> str:  # noqa: ARG001 - the same arguments for all reports
    """Return a summary for a pull request: the outcome, the statements, and a table of the changed rows."""
    return "\n".join(_generate_markdown(check)) + "\n"


REPORTS: dict[str, Callable[..., str]] = {
    "github": format_github,
    "gitlab": format_gitlab,
    "junit": format_junit,
    "markdown": format_markdown,
}
"""The functions that write a check as a report, by name of the report."""


def _generate_markdown(check: Check) -> Iterator[str]:
    yield f"### {_TITLE}: {check.outcome}"
    yield ""
    yield from _fence([check.sentence])
    yield ""
    for statement in list_statements(check):
        yield f"- **{statement.outcome}**: {_write_code(statement.name)}"
    yield ""
    details = [f.text for f in list_statements(check) if f.text != check.sentence]
    if details or check.notes:
        yield from _fence([*details, *(f"note: {note}" for note in check.notes)])
        yield ""
    rows = _list_changed_rows(check)
    if not rows:
        yield f"No part, phase, op or kernel is slower or faster ({len(check.rows):,} rows)."
        return
    yield "| level | name | verdict | interval | A (ns) | B (ns) |"
    yield "| --- | --- | --- | --- | ---: | ---: |"
    for row in rows[:_MAX_ROWS]:
        cells = (row.claim, row.interval, f"{row.time_a_ns:,.0f}", f"{row.time_b_ns:,.0f}")
        yield f"| {row.level} | {_write_code(_shorten(row.name))} | {' | '.join(cells)} |"
    if len(rows) > _MAX_ROWS:
        yield ""
        yield f"{len(rows) - _MAX_ROWS:,} more rows are slower or faster."


def _list_changed_rows(check: Check) -> list[CheckRow]:
    """Return the rows that are slower or faster, the slower ones first."""
    changed = [row for row in check.rows if row.verdict in ("slower", "faster")]
    return sorted(changed, key=lambda row: row.verdict, reverse=True)


def _shorten(name: str | None) -> str:
    return "(no name)" if name is None else shorten_middle(_clean(name))


def _clean(text: str) -> str:
    """Return text in one line, without control characters and surrogates."""
    return replace_surrogates(to_printable(text))


def _clean_xml(text: str) -> str:
    """Return text with only the characters that XML allows."""
    return _NOT_XML.sub("\ufffd", replace_surrogates(to_printable(text, keep="\n")))


def _write_code(text: str) -> str:
    """Return text as code in a line or a cell of a table of Markdown. Nothing in it is markup, a link or a mention."""
    text = _clean(text)
    if _PLAIN_CODE.fullmatch(text):
        return f"`{text.strip()}`"
    escaped = "".join(c if c.isalnum() or c == " " else f"&#{ord(c)};" for c in text)
    return f"<code>{escaped}</code>"


def _fence(lines: list[str]) -> Iterator[str]:
    """Yield lines of text as a block of code, in which nothing is markup."""
    texts = [_clean(part) for line in lines for part in line.split("\n")]
    longest = max((len(run) for text in texts for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    yield f"{fence}text"
    yield from texts
    yield fence
