"""``tracekit stats``."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - click needs it
from typing import TYPE_CHECKING

import click

from tracekit.cli.options import from_option, input_argument, load, selected, selection_options, style_option
from tracekit.cli.output import show

if TYPE_CHECKING:
    from tracekit.core.reports import ReportTable

DEFAULT = "nvtx_sum,osrt_sum,cuda_api_sum,cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,cuda_gpu_mem_size_sum"


@click.command("stats")
@input_argument
@click.option("-r", "--report", "reports", default=DEFAULT, metavar="NAME[,NAME]", help="Reports; nsys's default if left out.")
@from_option
@selection_options
@style_option
def command(
    path: Path,
    reports: str,
    from_: str | None,
    time: tuple[int | None, int | None] | None,
    devices: tuple[int, ...],
    domains: tuple[str, ...],
    min_duration_ns: int | None,
    style: str,
) -> None:
    """Print reports of nsys stats: its names, columns, order and numbers.

    With --format csv the output is byte for byte what `nsys stats -f csv -r NAME` prints. Old names (gpukernsum, …) work.
    """
    from tracekit.trace import report_table

    names = [n.strip() for n in reports.split(",") if n.strip()]
    with load(path, from_) as trace:
        chosen = selected(trace, time, devices, domains, min_duration_ns)
        for i, name in enumerate(names):
            made = report_table(chosen, name)
            if i and style in ("table", "csv"):
                click.echo()
            _print(name, made, style, several=len(names) > 1)


def _print(name: str, report: ReportTable, style: str, *, several: bool) -> None:
    if style == "csv":
        report.csv(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    if style == "table" and several:
        click.secho(name, bold=True)
    if style == "table" and not report.rows:
        click.echo("no data: the capture recorded nothing for it", err=True)
        return
    show(report.frame(), style)
