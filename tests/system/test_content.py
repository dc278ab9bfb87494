"""The id of the content of a capture depends on its content alone."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tracekit.system import content

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_id_of_a_file_is_its_digest(tmp_path: Path) -> None:
    first = tmp_path / "first"
    first.write_bytes(b"abc")
    second = shutil.copy(first, tmp_path / "second")
    digest = "sha256:ba7816bf8f01cfea414140de5dae2223"
    assert content.compute_content_id(first) == content.compute_content_id(second) == digest


def test_the_id_of_a_large_file_is_that_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_WHOLE_BYTES", 1000)
    monkeypatch.setattr(content, "SAMPLE_BYTES", 10)
    file = tmp_path / "large"
    file.write_bytes(bytes(100_000))
    before = content.compute_content_id(file)
    assert before is not None
    assert before.startswith("sha256-sampled:")
    for place in (0, 99_999):
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(b"x")
        after = content.compute_content_id(file)
        assert after != before
        before = after
    file.write_bytes(bytes(100_001))
    assert content.compute_content_id(file) != before


def test_the_id_of_a_folder_depends_on_names_and_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"2")
    ids = {content.compute_content_id(folder)}
    (folder / "b").write_bytes(b"3")
    ids.add(content.compute_content_id(folder))
    (folder / "b").replace(folder / "c")
    ids.add(content.compute_content_id(folder))
    assert len(ids) == 3
    monkeypatch.setattr(content, "MAX_FILES", 1)
    assert content.compute_content_id(folder) is None
