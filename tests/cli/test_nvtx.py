"""``--nvtx`` in every command that has ``--time``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tests.conftest import FIXTURES

if TYPE_CHECKING:
    from tests.cli.conftest import Run


@pytest.mark.parametrize("command", ["stats", "analyze", "rows", "correlate", "convert"])
def test_every_command_that_selects_by_time_selects_by_range(command: str, run: Run) -> None:
    path = FIXTURES / "graph_node.sqlite"
    assert "--nvtx" in run(command, "--help").text
    more = {
        "rows": ["kernels"],
        "correlate": ["-o", "-", "--to", "csv"],
        "convert": ["-", "--to", "csv", "--table", "kernels"],
    }
    failed = run(command, path, *more.get(command, []), "--nvtx", "nothing", status=1)
    said = "there is no NVTX range 'nothing' in the default domain\nHint: choose one of these ranges: 'capture', "
    assert said in failed.stderr


def test_a_name_that_is_not_utf8(run: Run) -> None:
    path = FIXTURES / "train_amp.nsys-rep"
    result = run("stats", path, "-r", "cuda_api_sum", "--nvtx", "caf\udce9", status=1)
    assert "there is no NVTX range 'caf\ufffd' in the default domain\nHint: choose one of these ranges" in result.stderr


def test_commands_print_the_selected_rows(run: Run) -> None:
    path = FIXTURES / "graph_node.sqlite"
    lines = run("rows", path, "kernels", "--nvtx", "replay 0", "--format", "csv").text.splitlines()
    with tk.load(path) as trace:
        assert len(lines) - 1 == trace.select(nvtx="replay 0").count("kernels") == 5
