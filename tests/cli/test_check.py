"""The command check: its output, exit statuses and reports, and the recording of programs."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import polars as pl
import pytest
import yaml
from markdown_it import MarkdownIt
from tests.builders.check_runs import make_run, make_runs
from tests.conftest import ALL, ROOT
from tracekit.cli.ci_reports import REPORTS, format_github, format_gitlab, format_junit, format_markdown
from tracekit.core.check import Check, check_runs
from tracekit.core.compare import parse_condition
from tracekit.core.compare.summary import DURATION
from tracekit.sets.comparison import write_baseline

if TYPE_CHECKING:
    from tests.cli.conftest import Run, Show

HOSTILE = [
    "::error::x",
    "##[add-mask]x",
    "a\n::set-env name=x::y",
    "%0A::stop-commands::x",
    "| cell | ``` `code` |",
    "@user #1 !2 :x:",
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "\\| a \\` b",
    "]]>&amp;",
    "\x00\x1b[31m\ufffe",
    "**b** __i__",
    "www.example.com https://example.com",
    "$x$ ~~s~~",
    "`",
    " ` ",
    "",
    "\u202eabc",
    "'\"",
]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Baselines with six runs each. The program of the second one is 20 % slower."""
    folder = tmp_path_factory.mktemp("sides")
    runs = {"a": make_runs(6, 1, kernels=2), "b": make_runs(6, 2, kernels=2, factor=1.2)}
    a, b = (write_baseline(side, folder / f"{name}.json", overwrite=False) for name, side in runs.items())
    return a, b


@pytest.fixture(scope="module")
def hostile() -> Check:
    """A check of kernels with hostile names and conditions, some of them slower, and one condition of each result."""

    def runs(first: int, factor: int) -> list[object]:
        kernels = {("kernels", name): 10**7 * factor for name in HOSTILE}
        return [
            make_run(
                {k: v + i * 1000 + first for k, v in kernels.items()} | {("iterations", DURATION): 10**9 * factor + i}
            )
            for i in range(8)
        ]

    texts = ("kernels[*::error*] > 5%", "kernels[zz::warning::x] > 5%", "kernel_time > 500%")
    conditions = [parse_condition(text) for text in texts]
    return check_runs(runs(0, 1), runs(7, 2), kinds=["kernels"], conditions=conditions)  # type: ignore[arg-type]


def test_a_slower_program(run: Run, sides: tuple[Path, Path]) -> None:
    done = run("check", *sides, "--fail-if", "kernel_time > 5%", "--fail-if", "kernel_time > 900%", status=3)
    lines = done.text.splitlines()
    assert lines[0].startswith("failed: slower by ")
    assert lines[2].split()[:3] == ["Level", "Name", "Verdict"]
    assert lines[3].split()[:3] == ["step", "(duration)", "slower"]
    assert "the condition kernel_time > 5% of --fail-if holds (the value is +" in done.stderr
    assert "the condition kernel_time > 900% of --fail-if does not hold" in done.stderr
    assert run("check", *sides, status=3).text.startswith("failed: slower by ")
    assert run("check", *reversed(sides)).text.startswith("passed: faster by ")
    assert "(first 1 of 3 rows" in run("check", *sides, "-n", "1", status=3).text
    assert "does not hold" not in run("check", *sides, "--fail-if", "kernel_time > 900%", "-q").stderr


def test_untestable_is_never_passed(run: Run, tmp_path: Path) -> None:
    one = write_baseline(make_runs(1, 1), tmp_path / "one.json", overwrite=False)
    other = write_baseline(make_runs(1, 2), tmp_path / "other.json", overwrite=False)
    done = run("check", one, other, "--fail-if", "iteration_time > 5%", status=4)
    assert done.text.startswith("untestable, because the variation between runs is unknown: record at least 3 runs")
    assert "the condition iteration_time > 5% of --fail-if cannot be tested" in done.stderr
    run("check", one, other, status=4)
    run("check", one, other, "--allow-untestable")
    junit = tmp_path / "x.xml"
    run("check", one, other, "--report", f"junit={junit}", "--report", "github", status=4)
    root = ET.fromstring(junit.read_text())
    assert (root.attrib["errors"], root.attrib["failures"]) == ("1", "0")
    assert next(root.iter("testcase"))[0].tag == "error"


def test_other_formats(run: Run, sides: tuple[Path, Path]) -> None:
    done = run("check", *sides, "--format", "json", status=3)
    value = json.loads(done.text)
    assert (value["outcome"], value["verdict"], value["status"]) == ("failed", "slower", "answered")
    assert [row["level"] for row in value["rows"]] == ["step", "kernel", "kernel"]
    assert value["conditions"] == []
    assert "failed: slower by" in done.stderr
    table = pl.read_csv(io.BytesIO(run("check", *sides, "--format", "csv", "-q", status=3).stdout))
    assert table["verdict"].to_list() == ["slower"] * 3
    assert table.columns[0] == "level"


def test_a_terminal_shows_what_fits(show: Show, sides: tuple[Path, Path]) -> None:
    shown = show("check", *sides, columns=70)
    assert "slower by" in shown
    assert all(len(line) <= 70 for line in shown.splitlines() if not line.startswith("(omitted columns: "))


def test_baselines_and_reports_are_written(run: Run, sides: tuple[Path, Path], tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    assert run("check", sides[0], "--save", saved).stderr == f"wrote {saved}\n"
    assert saved.read_bytes() == sides[0].read_bytes()
    targets = {name: tmp_path / f"report.{name}" for name in REPORTS}
    arguments = [f"--report={name}={path}" for name, path in targets.items()]
    run("check", *sides, *arguments, status=3)
    assert targets["github"].read_text().startswith("::error title=tracekit check%3A failed::slower by ")
    assert json.loads(targets["gitlab"].read_text())[0]["location"]["path"] == "a.json"
    assert targets["markdown"].read_text().startswith("### tracekit check: failed\n")
    assert "already exists" in run("check", *sides, *arguments, status=1).stderr
    run("check", *sides, *arguments, "-f", status=3)
    over = run("check", *sides, "--report", f"junit={sides[0]}", "-f", status=1)
    assert "this file is being read, so it cannot be replaced" in over.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a"], "BASELINE and CURRENT are required"),
        (["a", "b", "--run"], "--run and a program after -- belong together"),
        (["a", "b", "--", "x"], "--run and a program after -- belong together"),
        (["a", "--run", "--"], "the program after -- is missing"),
        (["a", "b", "--repeat", "2"], "--repeat applies only to --run"),
        (["a", "b", "--keep", "x"], "--keep applies only to --run"),
        (["a", "b", "--profiler", "nsys"], "--profiler applies only to --run"),
        (["a", "b", "--cause", "x"], "--cause applies only to --prediction"),
        (["a", "b", "--report", "xml=x"], "'xml=x' does not have the form FORMAT=FILE"),
        (["a", "b", "--report", "junit"], "'junit' does not have the form FORMAT=FILE"),
    ],
)
def test_wrong_arguments(run: Run, arguments: list[str], message: str) -> None:
    assert message in run("check", *arguments, status=2).stderr


@pytest.fixture
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nsys that copies a baseline, which is read like a capture, and writes down the commands to record."""
    folder, called = tmp_path / "tools", tmp_path / "called"
    folder.mkdir()
    recorded = write_baseline([make_run({("iterations", DURATION): 66_964_330})], tmp_path / "run", overwrite=False)
    body = (
        "import shutil, sys\nout = next(a for a in sys.argv if a.startswith('--output='))\n"
        f"open({str(called)!r}, 'a').write(repr(sys.argv[sys.argv.index(out) + 1:]))\n"
        f"shutil.copyfile({str(recorded)!r}, out.removeprefix('--output='))"
    )
    (folder / "nsys").write_text(f"#!{sys.executable}\n{body}\n")
    (folder / "nsys").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))
    return called


def test_programs_are_recorded(run: Run, nsys: Path, tmp_path: Path) -> None:
    why = tmp_path / "why.json"
    saving = {"low": -0.2, "likely": 0.0, "high": 0.2}
    step = {"mean_ns": 6_696_433}
    why.write_text(json.dumps({"schema": 1, "data": {"step": step, "causes": [{"cause": "copies", "saving": saving}]}}))
    done = run("check", "--run", "--prediction", why, "--", "./train", "--lr", "0.1", "-n", "--", "x")
    assert nsys.read_text() == "['./train', '--lr', '0.1', '-n', '--', 'x']"
    assert "prediction: copies: predicted a saving of 0.0 % (-20.0 % to 20.0 %), measured 0.0 %" in done.text
    assert "inside the predicted interval" in done.text
    assert "recorded run 1 of 1 with nsys" in done.stderr
    history = tmp_path / "history"
    options = ("--run", "--repeat", "2", "--history", history, "--keep", tmp_path / "kept")
    first = run("check", *options, "--", "./train", status=4)
    assert first.text.startswith("untestable: A has no run")
    second = run("check", *options, "--", "./train", status=4)
    assert "untestable, because the variation between runs is unknown" in second.text
    assert "run 2 of B is a copy of run 1" in second.text
    assert len(list(history.iterdir())) == 2
    assert len(list((tmp_path / "kept").iterdir())) == 4
    saved = run("check", "--run", "--save", tmp_path / "saved.json", "--", "./train")
    assert saved.stderr.endswith("saved.json\n")
    run("check", tmp_path / "saved.json", "--run", "-q", "--", "./train", status=4)


def test_annotations_contain_no_other_commands(hostile: Check) -> None:
    text = format_github(hostile, path="x")
    lines = text.splitlines()
    assert all(line.startswith(("::error title=", "::notice title=", "::warning title=")) for line in lines)
    assert sum(line.startswith("::warning") for line in lines) == min(len(hostile.rows), 20)
    assert [line.split(" ")[0] for line in lines[:3]] == ["::error", "::error", "::notice"]
    assert "##[" not in text
    assert all(character.isprintable() or character in "\n\ufffe" for character in text)
    assert all(
        line.count("::") >= 2
        and "%" not in line.replace("%25", "").replace("%0A", "").replace("%3A", "").replace("%23", "")
        for line in lines
    )


def test_the_code_quality_report(hostile: Check) -> None:
    issues = json.loads(format_gitlab(hostile, path="x\n\ud800"))
    assert [i["severity"] for i in issues] == ["major", "minor"]
    assert len({i["fingerprint"] for i in issues}) == 2
    assert all(set(i) == {"description", "check_name", "fingerprint", "severity", "location"} for i in issues)
    assert (
        issues[0]["location"] == {"path": "x\\n\ufffd", "lines": {"begin": 1}}
        or issues[0]["location"]["path"].isprintable()
    )


def test_junit(hostile: Check) -> None:
    root = ET.fromstring(format_junit(hostile, path="x"))
    assert {k: root.attrib[k] for k in ("tests", "failures", "errors")} == {
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    cases = list(root.iter("testcase"))
    assert [case[0].tag for case in cases] == ["failure", "error", "system-out"]


def test_names_are_no_markup(hostile: Check) -> None:
    text = format_markdown(hostile, path="x")
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert html.count("<tr>") == 1 + min(len(hostile.rows), 20)
    assert all(row.count("<td") == 6 for row in html.split("<tr>")[2:])
    outside = html
    for tag in ("code", "pre"):
        while f"<{tag}" in outside:
            before, _, rest = outside.partition(f"<{tag}")
            outside = before + rest.partition(f"</{tag}>")[2]
    for text_of_a_name in ("script", "javascript", "@user", "alert", "www", "https", "add-mask", "<a ", "<strong>b"):
        assert text_of_a_name not in outside
    assert set(filter(str.isalpha, "".join(c for c in outside if ord(c) > 127))) == set()


def test_a_table_is_no_command(run: Run, tmp_path: Path) -> None:
    for side in ("a", "b"):
        runs = [
            make_run({("iterations", DURATION): 10**9 + i + ord(side)} | {("kernels", n): 10**7 + i for n in HOSTILE})
            for i in range(5)
        ]
        write_baseline(runs, tmp_path / f"{side}.json", overwrite=False)
    lines = run("check", tmp_path / "a.json", tmp_path / "b.json", "-n", "0").text.splitlines()
    assert all(not line.lstrip().startswith("::") and "##[" not in line for line in lines)
    assert len(lines) == 3 + 1 + len(HOSTILE)


def read_workflow_commands(system: str) -> list[str]:
    """The commands of the example workflow for a CI system in the documentation, without the installation."""
    page = (ROOT / "docs" / "check.md").read_text("utf-8")
    blocks = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)]
    jobs = [block.get("jobs", block)["check"] for block in blocks]
    github, gitlab = ([step["run"] for step in jobs[0]["steps"] if "run" in step], jobs[1]["script"])
    return [command for command in {"github": github, "gitlab": gitlab}[system] if not command.startswith("pip ")]


@pytest.mark.parametrize(
    ("system", "factor"), [("github", 1.1), ("gitlab", 1.0), *([("github", 1.0), ("gitlab", 1.1)] if ALL else [])]
)
def test_the_example_workflows(system: str, factor: float, tmp_path: Path) -> None:
    """The nsys of this test writes a baseline of one more run each time, which is read like a capture."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for number, run in enumerate(make_runs(10, 5, variation=0.005, factor=factor, kernels=2)):
        write_baseline([run], tmp_path / f"run{number}", overwrite=False)
    write_baseline(make_runs(10, 6, variation=0.005, kernels=2), tmp_path / "baseline.json", overwrite=False)
    (tools / "nsys").write_text(
        f"#!{sys.executable}\nimport os, sys\nout = next(a for a in sys.argv if a.startswith('--output='))\n"
        "assert sys.argv[-2:] == ['python', 'train.py']\n"
        "os.rename(sorted(n for n in os.listdir() if n.startswith('run'))[0], out.removeprefix('--output='))\n"
    )
    (tools / "nsys").chmod(stat.S_IRWXU)
    environment = os.environ | {
        "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.defpath]),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "step"),
        "PYTHONPATH": str(ROOT),
    }
    first, *others = [
        subprocess.run(
            ["bash", "-ec", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        for command in read_workflow_commands(system)
    ]
    assert first.returncode == (0 if factor == 1 else 3), first.stderr
    assert [done.returncode for done in others] == [0] * (system == "github")
    if system == "github":
        assert (
            (tmp_path / "step").read_text().startswith("### tracekit check: " + ("passed" if factor == 1 else "failed"))
        )
        annotations = [line for line in first.stdout.splitlines() if line.startswith("::")]
        assert annotations[0].startswith("::notice" if factor == 1 else "::error")
    else:
        assert len(json.loads((tmp_path / "quality.json").read_text())) == (0 if factor == 1 else 2)
        assert ET.parse(tmp_path / "check.xml").getroot().attrib["tests"] == "2"
