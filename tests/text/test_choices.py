"""What an unknown name probably meant, for every kind of names, and that few names are listed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import tracekit as tk
from hypothesis import given
from hypothesis import strategies as st
from schemas.generate import names as generated_names
from tracekit import registry
from tracekit.cli import COMMANDS
from tracekit.errors import create_choices_hint
from tracekit.text import choices

if TYPE_CHECKING:
    from collections.abc import Callable

TRAIN = "fixtures/train_amp.sqlite"


def candidates(hint: str) -> list[str]:
    """Return the names that a hint lists or suggests."""
    listed = re.search(r"choose one of these [^:]*: (.*)$", hint)
    assert listed is not None
    names = [n for n in listed[1].replace("'", "").split(", ") if not n.startswith("…")]
    suggested = re.search(r"(?:did you mean|did you mean the .*) '([^']*)'|^'([^']*)' is the name", hint)
    meant = [] if suggested is None else [suggested[1] or suggested[2]]
    return list(dict.fromkeys([*meant, *names]))


def test_the_literals_are_current() -> None:
    assert generated_names.FILE.read_text("utf-8") == generated_names.text(), "run make generate"


@pytest.mark.parametrize("noun", choices.KINDS)
def test_synonyms_mean_names_of_their_kind(noun: str) -> None:
    kind = choices.KINDS[noun]
    assert set(kind.synonyms.values()) <= set(kind.known_names)
    assert not {word for word in kind.synonyms for name in kind.known_names if word == name.replace("-", "")}
    assert "{}" in kind.usage
    assert kind.usage.split()[1] in (*COMMANDS, "{}")
    for word, name in kind.synonyms.items():
        hint = create_choices_hint(noun, kind.known_names, word)
        assert hint.startswith(f"did you mean {name!r}? "), hint


@pytest.mark.parametrize("noun", choices.KINDS)
@given(unknown=st.text(max_size=30))
def test_at_most_ten_candidates(noun: str, unknown: str) -> None:
    kind = choices.KINDS[noun]
    hint = create_choices_hint(noun, kind.known_names, unknown)
    assert len(candidates(hint)) <= choices.MAX_LISTED
    listed = hint.rpartition("choose one of these ")[2].partition(": ")[2].split(", ")
    assert set(listed) - set(kind.known_names) <= {f"… ({len(kind.known_names)} in all)"}


@given(st.lists(st.text("ab_", max_size=5), max_size=30), st.text("ab_", max_size=5))
def test_names_of_a_capture(known: list[str], unknown: str) -> None:
    hint = create_choices_hint("ranges", known, unknown, quoted=True)
    if not known:
        assert hint == "there are no ranges"
    else:
        assert len(candidates(hint)) <= choices.MAX_LISTED
        if unknown in known:
            assert hint.startswith(f"did you mean {unknown!r}? ")


@pytest.mark.slow
def test_many_long_names_take_little_time() -> None:
    known = [f"{'x' * 5000}{i}" for i in range(100_000)]
    assert create_choices_hint("ranges", known, "x" * 100_000).endswith("(100,000 in all)")


@pytest.mark.parametrize(
    ("noun", "unknown", "hint"),
    [
        ("commands", "compare", "did you mean 'diff'?"),
        ("commands", "export", "did you mean 'convert'?"),
        ("commands", "top", "did you mean 'stats'?"),
        ("commands", "summary", "did you mean 'info'?"),
        ("commands", "open", "did you mean 'view'?"),
        ("commands", "show", "did you mean 'view'?"),
        ("commands", "print", "did you mean 'rows'?"),
        ("commands", "advise", "'advise' is the name of a report: use `tracekit stats IN --report advise`."),
        ("commands", "kernels", "'kernels' is the name of a table: use `tracekit rows IN kernels`."),
        ("commands", "gpu_gaps", "'gpu_gaps' is the name of a rule: use `tracekit analyze IN --rule gpu_gaps`."),
        (
            "commands",
            "perfetto",
            "'perfetto' is the name of an output format: use `tracekit convert IN --to perfetto`.",
        ),
        ("commands", "Stats", "did you mean 'stats'?"),
        ("reports", "kernels", "did you mean 'cuda_gpu_kern_sum'?"),
        ("reports", "advice", "did you mean 'advise'?"),
        ("reports", "mpi_sum", "'mpi_sum' is the name of a recipe: use `tracekit recipe IN --recipe mpi_sum`."),
        ("reports", "convert", "'convert' is the name of a command: use `tracekit convert`."),
        ("rules", "gaps", "did you mean 'gpu_gaps'?"),
        ("rules", "advise:x", "'advise' is the name of a report"),
        ("recipes", "straggler", "did you mean 'iteration_spread'?"),
        ("tables", "cuda_gpu_kern_sum", "'cuda_gpu_kern_sum' is the name of a report"),
        ("tables", "Kernel", "did you mean 'kernels'?"),
        ("exporters", "tensorboard", "did you mean 'tfevents'?"),
        ("exporters", "nsys-rep", "'nsys-rep' is the name of an input format: use `tracekit info IN --from nsys-rep`."),
        ("readers", "pytorch", "did you mean 'kineto'?"),
        ("readers", "html", "'html' is the name of an output format"),
    ],
)
def test_what_was_meant(noun: str, unknown: str, hint: str) -> None:
    assert create_choices_hint(noun, choices.KINDS[noun].known_names, unknown).startswith(hint)


@pytest.mark.parametrize(
    ("ask", "meant"),
    [
        (lambda trace: trace.frame("kernel"), "did you mean 'kernels'?"),
        (lambda trace: trace.stats("kern_sum"), "did you mean 'nvtx_kern_sum'?"),
        (lambda trace: trace.stats("mpi_sum"), "'mpi_sum' is the name of a recipe"),
        (lambda trace: trace.analyze("advise"), "'advise' is the name of a report"),
        (lambda trace: trace.export("x", format="excel"), "did you mean 'csv'?"),
        (lambda trace: tk.load(trace.path, "nsys"), "did you mean 'nsys-rep'?"),
    ],
)
def test_in_python(ask: Callable[[tk.Trace], Any], meant: str) -> None:
    with tk.load(TRAIN) as trace, pytest.raises(tk.TracekitError) as error:
        ask(trace)
    assert meant in str(error.value.hint)
    assert len(candidates(str(error.value.hint))) <= choices.MAX_LISTED


class TestSuffixes:
    """The suffix of an output stands for one format."""

    @pytest.mark.parametrize(
        ("name", "format"),
        [
            ("out.sqlite", "sqlite"),
            ("out.sqlite3", "sqlite"),
            ("out.db", "sqlite"),
            ("OUT.SQLITE", "sqlite"),
            ("dlprof_dldb.sqlite", "dlprof-db"),
            ("folder/dlprof_dldb.sqlite", "dlprof-db"),
            ("run.dldb.sqlite", "dlprof-db"),
            ("Run.DLDB.sqlite", "dlprof-db"),
            ("dldb.sqlite", "sqlite"),
            ("out.json", "chrome-trace"),
            ("out.JSON.GZ", "chrome-trace"),
            ("out.pt.trace.json", "chrome-trace"),
            ("out.speedscope.json", "speedscope"),
            ("out.pb.gz", "pprof"),
            ("out.pftrace.gz", "perfetto"),
        ],
    )
    def test_of_one_format(self, name: str, format: str) -> None:
        assert registry.find_exporter_for(name).format == format

    @pytest.mark.parametrize(
        "name", ["out.speedscope.json.gz", "out.gz", "out.csv.gz", "out.sqlite.gz", "out", "sqlite"]
    )
    def test_of_no_format(self, name: str) -> None:
        with pytest.raises(tk.TracekitError, match="no exporter writes files with this suffix") as error:
            registry.find_exporter_for(name)
        assert len(candidates(str(error.value.hint))) <= choices.MAX_LISTED

    def test_no_suffix_belongs_to_two_formats(self) -> None:
        suffixes = [s for exporter in registry.exporters().values() for s in exporter.suffixes]
        assert len(suffixes) == len(set(suffixes))
        assert all(suffix == suffix.lower() for suffix in suffixes)
        for exporter in registry.exporters().values():
            for suffix in exporter.suffixes:
                assert registry.find_exporter_for(f"out{suffix}") is exporter
                assert registry.find_exporter_for(f"OUT{suffix.upper()}") is exporter
