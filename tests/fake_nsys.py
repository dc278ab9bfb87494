"""An ``nsys`` for tests: the only program on the PATH, made of some lines of Python."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from tests.builders.nsys_rep import Parts

TRAIN = Path(__file__).parents[1] / "fixtures" / "train_amp.sqlite"


class FakeNsys:
    """A PATH without nsys, until one is installed.

    Attributes:
        report: A report, which the nsys of these tests does not look at.
        export: What it exports: a real capture.
        called: Where it writes down how it was called.
        temporary: Where temporary files go.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.report, self.called = folder / "made.nsys-rep", folder / "called"
        self.temporary, self.tools = folder / "temporary", folder / "tools"
        self.export = folder / "export.sqlite"
        self.report.write_bytes(Parts().pack())
        self.export.write_bytes(TRAIN.read_bytes())
        self.temporary.mkdir()
        self.tools.mkdir()
        monkeypatch.setenv("PATH", str(self.tools))
        monkeypatch.setattr("tempfile.tempdir", str(self.temporary))

    def install(self, body: str) -> Path:
        """Put an nsys on the PATH that does something."""
        tool = self.tools / "nsys"
        tool.write_text(f"#!{sys.executable}\nimport os, shutil, signal, sys, time\n{body}\n", "utf-8")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        return tool

    def install_exporter(self) -> None:
        """Put an nsys on the PATH that exports every report to the same file, and talks."""
        self.install(
            "print('exporting for alice'); print('much talk', file=sys.stderr)\n"
            f"open({str(self.called)!r}, 'w').write('\\n'.join(sys.argv[1:]))\n"
            "target = next(a for a in sys.argv if a.startswith('--output=')).removeprefix('--output=')\n"
            f"shutil.copyfile({str(self.export)!r}, target)"
        )

    def left(self) -> list[Path]:
        """Temporary files that are there."""
        return sorted(self.temporary.rglob("*"))
