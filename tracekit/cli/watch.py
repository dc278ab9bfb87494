"""The command ``tracekit watch``, which compares the ranks of a job while they write captures."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from tracekit.cli.options import (
    CAPTURE,
    create_name_completer,
    parse_duration,
    parse_rank_assignment,
    quiet_option,
)
from tracekit.cli.output import print_message
from tracekit.system import interrupts, memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tracekit.cli.options import CapturePath
    from tracekit.sets import Engine
    from tracekit.watching import Alarm
    from tracekit.watching.state import WatchState

_S = 1e9
_RULES = ("auto", "steps", "time", "order")
_STDOUT = Path("-")


class _Outputs(NamedTuple):
    """Where alarms and metrics are written."""

    alarms: Path
    prometheus: Path | None
    quiet: bool

    @contextlib.contextmanager
    def open_alarms(self) -> Iterator[Callable[[Alarm], None]]:
        """Yield the function that writes an alarm."""
        if self.alarms == _STDOUT:
            yield lambda alarm: click.echo(alarm.to_json())
            return
        from tracekit.watching.outputs import AlarmFile

        file = AlarmFile(self.alarms)

        def write(alarm: Alarm) -> None:
            file.write(alarm)
            print_message(alarm.sentence, quiet=self.quiet)

        with contextlib.closing(file):
            yield write

    def write_metrics(self, state: WatchState) -> None:
        """Replace the file of metrics, if there is one."""
        if self.prometheus is not None:
            from tracekit.watching.outputs import write_metrics

            write_metrics(self.prometheus, state)


def _list_reader_names() -> Iterable[str]:
    from tracekit import registry

    return registry.readers()


@click.command("watch")
@click.argument("folder", metavar="FOLDER", type=CAPTURE)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Store the progress in FILE, so that a watch that was ended or killed continues there.",
)
@click.option(
    "--alarms",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=_STDOUT,
    help="Append the alarms to FILE. By default, they are printed to standard output.",
)
@click.option(
    "--prometheus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write metrics to FILE, such as tracekit.prom in the folder of the textfile collector.",
)
@click.option("--once", is_flag=True, help="End after the files in the folder were read, such as for cron.")
@click.option(
    "--interval", metavar="TIME", type=parse_duration, default="10s", show_default=True, help="Time between two looks."
)
@click.option(
    "--settle",
    metavar="TIME",
    type=parse_duration,
    default="5s",
    show_default=True,
    help="Read a file once it has not changed for TIME.",
)
@click.option(
    "--wait",
    metavar="TIME",
    type=parse_duration,
    default="600s",
    show_default=True,
    help="Compare a window without the ranks that are missing TIME after its first capture.",
)
@click.option(
    "--rank",
    "ranks",
    metavar="NAME=N",
    type=parse_rank_assignment,
    multiple=True,
    help="Use rank N for the file or subfolder NAME, instead of the recorded rank. Can be repeated.",
)
@click.option(
    "--world-size",
    metavar="N",
    type=click.IntRange(1, 10_000_000),
    help="Expect the ranks 0 to N-1 in every window. By default, those are expected that earlier windows contain.",
)
@click.option(
    "--match",
    type=click.Choice(_RULES),
    default="auto",
    show_default=True,
    help="How captures of different ranks are matched: by numbers of steps, by time in UTC, or in their order.",
)
@click.option(
    "--min-share",
    metavar="SHARE",
    type=click.FloatRange(0, 1e6),
    default=0.02,
    show_default=True,
    help="Smallest loss of time that is reported, as a share of a step.",
)
@click.option(
    "--false-alarms",
    metavar="N",
    type=click.FloatRange(1e-9, 1e3),
    default=0.001,
    show_default=True,
    help="Number of alarms per window that are expected by chance.",
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), default=1, show_default=True, help="Read with N processes."
)
@click.option("--engine", metavar="dask|ADDRESS", help="Read with a Dask cluster, which is started if it is not named.")
@click.option(
    "--from",
    "from_",
    metavar="FORMAT",
    shell_complete=create_name_completer(_list_reader_names),
    help="Format of the captures. By default, it is detected from the content.",
)
@quiet_option
def watch_command(
    *,
    folder: CapturePath,
    state: Path | None,
    alarms: Path,
    prometheus: Path | None,
    once: bool,
    interval: int,
    settle: int,
    wait: int,
    ranks: tuple[tuple[str, int], ...],
    world_size: int | None,
    match: str,
    min_share: float,
    false_alarms: float,
    jobs: int,
    engine: str | None,
    from_: str | None,
    quiet: bool,
) -> None:
    """Watch FOLDER, to which the ranks of a job write captures, and report late ranks and lost time.

    Each new capture is read once, and reduced to a summary of a few kilobytes. Captures of the same steps form a
    window. When all ranks are present, they are compared: an alarm names the rank for which others wait, the phase of
    the step in which it lost time, and how much. There are also alarms for missing ranks and for captures that cannot
    be read. FOLDER is searched with its subfolders, or is a URL.

    Alarms are lines of JSON. Press Ctrl-C to stop.
    """
    os.environ.update(memory.ALLOCATORS | os.environ)
    from tracekit.core.watch import Limits, MatchRule
    from tracekit.watching.files import WatchedFolder
    from tracekit.watching.watcher import Watcher, WatchOptions, open_state

    options = WatchOptions(
        interval_s=interval / _S,
        settle_s=settle / _S,
        wait_s=wait / _S,
        once=once,
        format=from_,
        ranks=dict(ranks),
        world_size=world_size,
        rule=MatchRule(match),
        limits=Limits(min_share, false_alarms),
    )
    watched = WatchedFolder(folder)
    outputs = _Outputs(alarms, prometheus, quiet)
    with open_state(state, watched) as opened, outputs.open_alarms() as write:
        for path in (alarms, prometheus):
            if path is not None and path != _STDOUT:
                watched.ignore(path)
        outputs.write_metrics(opened)
        watcher = Watcher(
            watched,
            opened,
            options,
            _create_engine(engine, jobs),
            report=lambda text: print_message(text, quiet=quiet),
            after_look=lambda: outputs.write_metrics(opened),
        )
        if not once:
            print_message("Press Ctrl-C to stop.", quiet=quiet)
        for alarm in watcher.run():
            write(alarm)
            interrupts.mark_output_incomplete()


def _create_engine(engine: str | None, jobs: int) -> Engine:
    """Return the engine that the options name."""
    from tracekit.sets.engines import LocalEngine, resolve_engine

    return LocalEngine(jobs) if engine is None else resolve_engine(engine)
