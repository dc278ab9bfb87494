"""``tracekit why --format json``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests import why_schema

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.mark.every
@pytest.mark.parametrize("path", ["fixtures/train_amp.sqlite", "fixtures/cpu_only.sqlite"])
def test_the_command_prints_the_declared_object(path: str, run: Run) -> None:
    printed = json.loads(run("why", path, "--format", "json", "--quiet").stdout)
    assert why_schema.validate(printed) == []
    assert printed["input"] == [path]
