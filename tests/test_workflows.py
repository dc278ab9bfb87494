"""The files for GitHub and pre-commit: they are valid, and run what exists and what a developer runs."""

from __future__ import annotations

import importlib.resources
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pre_commit import clientlib
from ruamel.yaml import YAML
from tests import install
from tracekit.cli import COMMANDS

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):(?!=)", MAKEFILE, re.MULTILINE))


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text("utf-8"))


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{path.stem}:{name}", job) for path in WORKFLOWS for name, job in read(path)["jobs"].items()]


def steps() -> list[dict[str, Any]]:
    return [step for _, job in jobs() for step in job.get("steps", [])]


def commands() -> list[str]:
    return [line for step in steps() for line in step.get("run", "").splitlines()]


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [GITHUB / "dependabot.yml"]),
    ],
)
def test_files_follow_their_schema(schema: str, paths: list[Path]) -> None:
    folder = importlib.resources.files("check_jsonschema.builtin_schemas.vendor")
    declared = json.loads((folder / f"{schema}.json").read_text("utf-8"))
    validator = jsonschema.validators.validator_for(declared)(declared)
    assert paths
    for path in paths:
        assert [f"{path.name}: {error.json_path}: {error.message}" for error in validator.iter_errors(read(path))] == []
        assert not validator.is_valid({"name": 1})


def test_pre_commit_runs_what_make_check_runs() -> None:
    config = clientlib.load_config(ROOT / ".pre-commit-config.yaml")
    (repository,) = config["repos"]
    checks = re.search(r"^check: (.*)$", MAKEFILE, re.MULTILINE)
    assert checks is not None
    hooks = {hook["entry"]: hook for hook in repository["hooks"]}
    assert set(hooks) == {f"make {target}" for target in checks[1].split()}
    assert {stage for hook in hooks.values() for stage in hook["stages"] or config["default_stages"]} == set(
        config["default_install_hook_types"]
    )
    assert not any(hook["pass_filenames"] for hook in hooks.values())


def test_every_target_exists() -> None:
    lines = [*commands(), *(hook["entry"] for hook in read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"])]
    texts = [path.read_text("utf-8") for path in (*FORMS, GITHUB / "PULL_REQUEST_TEMPLATE.md")]
    used = {line.split()[1] for line in lines if line.startswith("make ")}
    used |= {target for text in texts for target in re.findall(r"`make ([a-z-]+)", text)}
    assert {"check", "test", "portable", "lowest", "dist", "docs", "sbom"} <= used <= TARGETS


def test_every_step_is_a_command_of_the_makefile() -> None:
    """Only the steps that talk to GitHub are not commands of this repository."""
    dry = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup", "test", "dist"],
        cwd=ROOT, text=True, capture_output=True, check=True,
    ).stdout  # fmt: skip
    run = {" ".join(shlex.split(line.replace(".venv/bin/", ""))) for line in dry.splitlines() if "/bin/" in line}
    known = {re.sub(r" --(quiet|disable-pip-version-check)\b", "", line) for line in run}
    other = [line for line in commands() if not line.startswith("make ") and "$GITHUB_REF_NAME" not in line]
    other = [line for line in other if "GITHUB_REF_NAME#v" not in line]
    assert len(other) == 6
    for line in other:
        words = " ".join(shlex.split(line))
        if words.startswith("python -m pytest"):
            assert any(words.replace(" -n auto", " -n 2") in each for each in known), words
        else:
            assert words in known, words


def test_versions_of_python_are_those_of_the_package() -> None:
    matrices = [job["strategy"]["matrix"] for _, job in jobs() if "strategy" in job]
    assert [matrix["python"] for matrix in matrices] == [list(install.VERSIONS)] * len(matrices) != []
    for version in [row["python"] for matrix in matrices for row in matrix.get("include", ())]:
        assert version in install.VERSIONS
    for step in steps():
        for version in str(step.get("with", {}).get("python-version", "")).split():
            assert version in install.VERSIONS or "matrix.python" in step["with"]["python-version"]
    (several,) = (v for s in steps() if "\n" in (v := str(s.get("with", {}).get("python-version", ""))))
    assert sorted(several.split()) == list(install.VERSIONS)
    systems = {os.partition("-")[0] for matrix in matrices for os in matrix["os"]}
    assert systems == {"ubuntu", "macos", "windows"}


def test_every_extra_group_and_path_exists() -> None:
    text = "\n".join(commands())
    extras = {extra for part in re.findall(r"\.\[([a-z,]+)\]", text) for extra in part.split(",")}
    assert extras
    assert extras <= set(PROJECT["project"]["optional-dependencies"])
    groups = set(re.findall(r"--group ([a-z]+)", text))
    assert {"dev", "release"} <= groups <= set(PROJECT["dependency-groups"])
    paths = set(re.findall(r"\b(?:[\w-]+/)*[\w-]+\.(?:py|txt)\b", text))
    assert {"constraints.txt", "tests/install.py"} <= paths
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_jobs_may_do_little_and_end() -> None:
    for path in WORKFLOWS:
        workflow = read(path)
        assert workflow["permissions"] in ({}, {"contents": "read"})
        assert "concurrency" in workflow
        assert "pull_request_target" not in workflow["on"]
    writing = {
        name: {permission for permission, level in job.get("permissions", {}).items() if level == "write"}
        for name, job in jobs()
    }
    assert {name: permissions for name, permissions in writing.items() if permissions} == {
        "docs:deploy": {"pages", "id-token"},
        "release:attest": {"attestations", "id-token"},
        "release:publish": {"id-token"},
        "release:page": {"contents"},
    }
    assert [name for name, job in jobs() if "uses" not in job and not 1 <= job["timeout-minutes"] <= 90] == []
    for step in steps():
        assert "${{" not in step.get("run", ""), "values of events are not part of commands"
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


def test_actions_are_commits_with_their_version() -> None:
    lines = [line for path in WORKFLOWS for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    actions = [line for line in lines if "uses: ./" not in line]
    versions: dict[str, set[str]] = {}
    for line in actions:
        match = re.fullmatch(r"\s*(?:- )?uses: ([\w.-]+/[\w.-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", line)
        assert match is not None, line
        versions.setdefault(match[1], set()).add(f"{match[2]} {match[3]}")
    assert {name for name in versions if not name.startswith("actions/")} == {"pypa/gh-action-pypi-publish"}
    assert [name for name, commits in versions.items() if len(commits) > 1] == []
    assert all((ROOT / line.partition("uses: ")[2]).is_file() for line in lines if "uses: ./" in line)


def test_a_release_uploads_what_was_tested_and_attested() -> None:
    jobs = read(GITHUB / "workflows" / "release.yml")["jobs"]
    assert jobs["attest"]["needs"] == ["tests", "build"]
    assert jobs["publish"]["needs"] == "attest"
    (upload,) = (s for s in jobs["publish"]["steps"] if "pypi-publish" in s["uses"])
    assert upload["with"] == {"packages-dir": "dist/", "attestations": True}
    provenance, materials = (s["with"] for s in jobs["attest"]["steps"] if s["uses"].startswith("actions/attest@"))
    assert provenance == {"subject-path": "dist/*"}
    assert materials == {"subject-path": "dist/*", "sbom-path": "out/tracekit.cdx.json"}
    assert "secrets" not in (GITHUB / "workflows" / "release.yml").read_text("utf-8")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_ask_for_the_capture(path: Path) -> None:
    form = read(path)
    named = re.findall(r"`tracekit ([^ `]+)", path.read_text("utf-8"))
    assert {"info"} <= set(named) <= {*COMMANDS, "--version"}
    fields = {field["id"]: field for field in form["body"] if "id" in field}
    assert "`tracekit info " in fields["info"]["attributes"]["label"]
    if path.stem != "idea":
        assert fields["capture"]["validations"] == fields["info"]["validations"] == {"required": True}
        assert "`tracekit redact " in fields["capture"]["attributes"]["description"]
        (box,) = fields["redacted"]["attributes"]["options"]
        assert box["required"] is True
