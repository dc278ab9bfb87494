"""What reading a file may cost is bounded by its size, whatever it announces: the bounds of ``docs/errors.md``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests import fork_server
from tests.builders.bombs import BOMBS

ROOT = Path(__file__).parents[2]
FIXED_BYTES, BYTES_PER_BYTE = 256 << 20, 512
SECONDS, SECONDS_PER_MB = 5, 20


def size_of(path: Path) -> int:
    return sum(p.stat().st_size for p in (path.rglob("*") if path.is_dir() else [path]))


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system does not tell the memory held")
@pytest.mark.parametrize("bomb", BOMBS)
def test_memory_and_time_are_bounded(bomb: str, tmp_path: Path) -> None:
    name, reader, make = BOMBS[bomb]
    path = tmp_path / name
    make(path)
    size = size_of(path)
    most, seconds = FIXED_BYTES + BYTES_PER_BYTE * size, SECONDS + SECONDS_PER_MB * size / 1e6
    limits = (str(most + (2 << 30)), str(seconds + 60))
    command = [sys.executable, "-m", "tests.readers.bounded", str(path), reader, *limits]
    done = fork_server.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    spent = json.loads(done.stdout)
    assert spent["bytes"] <= most
    assert spent["seconds"] <= seconds
    assert any(not said.startswith("0 ") for said in spent["said"].values())


def test_the_bounds_are_those_of_the_documentation() -> None:
    text = " ".join((ROOT / "docs" / "errors.md").read_text("utf-8").split())
    assert f"{FIXED_BYTES >> 20} MiB plus {BYTES_PER_BYTE} bytes for each byte of the file" in text
    assert f"processor time is {SECONDS} seconds plus {SECONDS_PER_MB} seconds for each megabyte" in text
