"""Mutated files with secrets in them end in an error of ours or in a copy that holds none, within 5 s and 1 GiB each.

``NSYS_REP_REDACT_FUZZ=5000`` and ``NSYS_SQLITE_REDACT_FUZZ`` set the number of cases; ``tests/fuzz/redacting.py`` says
how to run one case again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.conftest import ALL
from tests.fuzz.redacting import FORMATS, SECONDS
from tests.fuzz.run import ROOT

CASES = {"nsys_rep": 150, "nsys_sqlite": 100} if ALL else {"nsys_rep": 12, "nsys_sqlite": 8}


@pytest.mark.slow
@pytest.mark.many(1)
@pytest.mark.parametrize("name", FORMATS)
def test_every_case_ends_in_an_error_or_in_a_copy_without_secrets(name: str) -> None:
    number = int(os.environ.get(f"{name.upper()}_REDACT_FUZZ", CASES[name]))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    command = [sys.executable, "-m", "tests.fuzz.redacting", name, "0", str(number)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60 + number * SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ended = json.loads(done.stdout)
    assert not ended["failures"], "\n".join(ended["failures"])
    assert ended["errors"] + ended["copies"] == number
    assert min(ended["errors"], ended["copies"]) >= number // 10
