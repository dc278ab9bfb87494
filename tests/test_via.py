"""Reports read through nsys: it is run when asked for, its export is read, and deleted when the trace is closed."""

from __future__ import annotations

import gc
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tracekit as tk
from tests.fake_nsys import TRAIN, FakeNsys
from tracekit.errors import CorruptTraceError, TracekitError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNsys:
    """A PATH without nsys."""
    return FakeNsys(tmp_path, monkeypatch)


def test_the_export_is_read_and_deleted_when_the_trace_is_closed(
    fake: FakeNsys, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.install_exporter()
    with tk.load(fake.report, via="nsys") as trace, tk.load(TRAIN) as expected:
        (made,) = (path for path in fake.left() if path.suffix == ".sqlite")
        assert (trace.path, trace.format) == (fake.report, "nsys-sqlite")
        assert [n for n in trace.tables if not trace[n].equals(expected[n])] == []
        assert trace.correlate().count("kernels") == 334
    arguments = fake.called.read_text("utf-8").splitlines()
    assert arguments == ["export", "--type=sqlite", f"--output={made}", str(fake.report)]
    assert fake.left() == []
    assert capfd.readouterr() == ("", "")


def test_a_trace_that_is_given_up_leaves_no_file(fake: FakeNsys) -> None:
    fake.install_exporter()
    trace = tk.load(fake.report, via="nsys").correlate()
    assert trace.count("kernels") == 334
    assert fake.left()
    del trace
    gc.collect()
    assert fake.left() == []


def test_paths_are_given_whole(fake: FakeNsys, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install_exporter()
    odd = fake.report.rename(fake.report.with_name("--output=x.nsys-rep"))
    monkeypatch.chdir(odd.parent)
    with tk.load(odd.name, via="nsys") as trace:
        assert trace.count("kernels") == 334
    assert fake.called.read_text("utf-8").splitlines()[-1] == str(odd)


def test_it_is_never_run_without_being_asked_for(fake: FakeNsys) -> None:
    fake.install_exporter()
    with tk.load(fake.report) as trace:
        assert trace.format == "nsys-rep"
    assert not fake.called.exists()


def test_without_nsys_it_says_what_to_do(fake: FakeNsys) -> None:
    with pytest.raises(TracekitError) as caught:
        tk.load(fake.report, via="nsys")
    assert str(caught.value) == (
        f"{fake.report}: the report cannot be exported, because the program nsys is not on the PATH\n"
        "Hint: add the folder of nsys to PATH, or let tracekit read the report without nsys"
    )
    assert fake.left() == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("print('secret'); print('secret', file=sys.stderr); sys.exit(3)", "nsys export failed with exit status 3"),
        ("os.kill(os.getpid(), signal.SIGKILL)", f"nsys export was ended by signal {int(signal.SIGKILL)}"),
        ("pass", "nsys export wrote no file, although it reported success"),
    ],
    ids=["status", "signal", "nothing"],
)
def test_when_it_fails_it_says_how(body: str, said: str, fake: FakeNsys, capfd: pytest.CaptureFixture[str]) -> None:
    fake.install(body)
    with pytest.raises(TracekitError) as caught:
        tk.load(fake.report, via="nsys")
    hint = f"to see the reason, run: nsys export --type sqlite {fake.report}"
    assert str(caught.value) == f"{fake.report}: {said}\nHint: {hint}"
    assert fake.left() == []
    assert capfd.readouterr() == ("", "")


def test_what_cannot_be_run_is_an_error_of_ours(fake: FakeNsys) -> None:
    fake.install("").write_bytes(b"\x7fELF but not really")
    with pytest.raises(TracekitError, match=re.escape(f"{fake.report}: nsys cannot be run: ")):
        tk.load(fake.report, via="nsys")
    assert fake.left() == []


def test_a_damaged_export_is_an_error_and_deleted(fake: FakeNsys) -> None:
    fake.export.write_bytes(TRAIN.read_bytes()[:10_000])
    fake.install_exporter()
    with pytest.raises(CorruptTraceError, match="truncated"):
        tk.load(fake.report, via="nsys")
    assert fake.left() == []


def test_only_reports_are_exported_and_only_by_nsys(fake: FakeNsys) -> None:
    with pytest.raises(TracekitError) as caught:
        tk.load(TRAIN, via="nsys")
    assert str(caught.value) == (
        f"{TRAIN}: nsys can export only its own reports (nsys-rep), but the format of this file is nsys-sqlite\n"
        "Hint: load the file without via= or --via"
    )
    with pytest.raises(
        UnknownFormatError,
        match="cannot be exported with the program 'ncu'\nHint: use nsys, the only supported program",
    ):
        tk.load(fake.report, via="ncu")
    with pytest.raises(FileNotFoundError):
        tk.load("nothing.nsys-rep", "nsys-rep", via="nsys")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, also where the tests run in the background of a shell, which lets programs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interruption_ends_it_and_leaves_nothing(fake: FakeNsys) -> None:
    with tk.load(TRAIN) as trace:
        trace.frame("kernels").collect()  # from now on polars answers to an interruption, too
    fake.install("os.kill(os.getppid(), signal.SIGINT); time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        tk.load(fake.report, via="nsys")
    assert time.monotonic() - began < 30
    assert fake.left() == []
