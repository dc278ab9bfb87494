"""Commands name the captures of a folder or pattern that cannot be read, and fail with ``--strict``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.builders.torch_ranks import write_ranks
from tests.cli.conftest import Run

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 12345\n"
REASON = "the capture was skipped, because it cannot be read: this is a Git LFS pointer"
COMMANDS = (
    ["stats", "IN", "-r", "cuda_gpu_kern_sum"],
    ["analyze", "IN", "-r", "gpu_gaps"],
    ["tables", "IN"],
    ["info", "IN"],
    ["rows", "IN", "kernels"],
    ["correlate", "IN", "-o", "OUT.parquet"],
    ["recipe", "cuda_gpu_kern_sum", "IN"],
    ["diff", "IN", "IN", "--by", "copies"],
    ["convert", "IN", "OUT.parquet", "--table", "kernels"],
)


@pytest.mark.many(9)
@pytest.mark.parametrize("pattern", ["", "*"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_a_capture_that_cannot_be_read(command: list[str], pattern: str, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    write_ranks(folder, 2)
    (folder / "rank2.nsys-rep").write_bytes(POINTER)
    values = {"IN": str(folder / pattern), "OUT.parquet": str(tmp_path / "out.parquet")}
    words = [values.get(word, word) for word in command]
    lenient = run(*words)
    assert lenient.stderr.count(f"warning: {folder}/rank2.nsys-rep: {REASON}") == words.count(values["IN"])
    assert "others" not in lenient.stderr
    strict = run(*words, *(["-f"] if "OUT.parquet" in command else []), "--strict", status=1)
    assert f"{folder}/rank2.nsys-rep: this is a Git LFS pointer" in strict.stderr
    (folder / "rank2.nsys-rep").unlink()
    assert run(*words, *(["-f"] if "OUT.parquet" in command else [])).text == lenient.text


def test_of_named_files_info_shows_the_others(run: Run, tmp_path: Path) -> None:
    """A file that the user names is an error. ``info`` shows the other files nevertheless."""
    write_ranks(tmp_path, 2)
    (tmp_path / "rank2.nsys-rep").write_bytes(POINTER)
    shown = run("info", *sorted(tmp_path.iterdir()), status=1)
    assert shown.text.count("rank") >= 2
    assert "rank2.nsys-rep: this is a Git LFS pointer" in shown.stderr
