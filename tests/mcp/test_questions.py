"""Captures stay open between questions, until a file changes."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import FIXTURES
from tracekit.mcp.private_text import PrivateTextMask
from tracekit.mcp.questions import Questioner, QuestionLimits
from tracekit.mcp.roots import AllowedFolders


def test_captures_are_opened_again_after_a_file_changed(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for rank in range(2):
        shutil.copy(FIXTURES / "empty.sqlite", tmp_path / "job" / f"rank{rank}.sqlite")
    folders = AllowedFolders([tmp_path])
    mask = PrivateTextMask(folders, b"key", is_active=True)
    questioner = Questioner(folders, mask, QuestionLimits(60, 1 << 30))
    path = str(tmp_path / "job")
    first = questioner._get(path)
    assert questioner._get(path) is first
    before = Path(path).stat()
    shutil.copy(FIXTURES / "train_amp.sqlite", tmp_path / "job" / "rank1.sqlite")  # the folder itself does not change
    assert Path(path).stat().st_mtime_ns == before.st_mtime_ns
    second = questioner._get(path)
    assert second is not first
    assert questioner.answer("open_capture", {"capture": path})["coverage"]["tables"]["kernels"] == 334
    assert questioner._get(path) is second
    second.close()
