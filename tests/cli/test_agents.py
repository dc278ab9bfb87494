"""The guide for agents is short, and its commands work."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tracekit import cli
from tracekit.answers import Envelope

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "agents.md").read_text("utf-8")
COMMANDS = re.findall(r"^tracekit (.*)$", GUIDE, re.MULTILINE)
MAX_LINES = 150


def test_the_guide_is_short() -> None:
    assert len(GUIDE.splitlines()) < MAX_LINES
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command.split()[:2]))
def test_the_commands_of_the_guide_work(command: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = shlex.split(command)
    printed = run(*arguments).text
    if "answer" in arguments:
        envelope = Envelope.from_dict(json.loads(printed))
        assert envelope.inputs[0].content_id is not None
        assert envelope.status in ("answered", "unsure")
    elif "json" in arguments:
        assert json.loads(printed)["status"] == "answered"
    else:
        assert printed


def test_the_commands_that_the_guide_names_exist() -> None:
    named = set(re.findall(r"tracekit (\w[\w-]*)", GUIDE)) - {"tracekit"}
    assert {name for name in named if name not in cli.COMMANDS} <= {"finds", "can", "states"}
