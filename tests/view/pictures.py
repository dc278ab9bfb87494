"""Take the pictures of the viewer in the documentation: ``python -m tests.view.pictures [NAME...]``.

Each picture is the upper part of a page in a window of 1440 by 900 pixels, with a palette so that it stays small. The
captures are fixtures, and captures of two ranks that lie beside the repository.
"""

from __future__ import annotations

import io
import sys
import tempfile
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import tracekit as tk
from tests import chromium
from tests.view.browser import SWITCHES, Tab
from tests.view.support import FIXTURES, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tracekit.view.server import Viewer

FOLDER = FIXTURES.parent / "docs" / "images"
SHARED = FIXTURES.parents[1] / "shared" / "captures" / "h200_more"
SICK = SHARED.parent / "sick"
STRAGGLER = tuple(SICK / f"ddp_straggler_rank{n}.nsys-rep" for n in (0, 1))
DLPROF = Path(tempfile.gettempdir()) / "dlprof_dldb.sqlite"
"""Database of DLProf that is exported for its picture."""
TRAIN = (FIXTURES / "train_amp.nsys-rep",)
RANKS = tuple(SHARED / f"straggler_rank{n}.nsys-rep" for n in (0, 1))
WIDTH, HEIGHT = 1440, 900
MAX_BYTES = 80_000
COLORS = (256, 128, 64)
"""Numbers of colors, of which the largest is used with which the picture is small enough."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page.

    Attributes:
        name: Name of the file, without prefix and suffix.
        captures: The captures that the server opens.
        url: URL of the page.
        scheme: Color scheme.
        select: Tables whose first row is selected, in this order.
        scroll: Table that is at the top of the window.
        size: Width and height of the window in pixels.
    """

    name: str
    captures: tuple[Path, ...]
    url: str
    scheme: str = "light"
    select: tuple[str, ...] = ()
    scroll: str = ""
    size: tuple[int, int] = (WIDTH, HEIGHT)


PICTURES = (
    Picture("overview", TRAIN, "/"),
    Picture("timeline", TRAIN, "/timeline?start=495230000&end=495430000&event=kernels:300"),
    Picture("op_types", TRAIN, "/op_types"),
    Picture("groups", TRAIN, "/groups?depth=2"),
    Picture("ops", TRAIN, "/ops", select=("ops",), scroll="ops"),
    Picture("iterations", TRAIN, "/iterations"),
    Picture("iteration", TRAIN, "/iterations", select=("iterations",), scroll="iterations"),
    Picture("findings", (FIXTURES / "ncu" / "ncu_basic.ncu-rep",), "/findings", select=("findings",)),
    Picture("queues", TRAIN, "/queues"),
    Picture("kernels", TRAIN, "/kernels", "dark"),
    Picture("memory", TRAIN, "/memory"),
    Picture("api", TRAIN, "/api"),
    Picture("nvtx", TRAIN, "/nvtx"),
    Picture("idle", TRAIN, "/idle"),
    Picture("tables", TRAIN, "/tables?table=kernels"),
    Picture("gpus", (FIXTURES / "ddp2.nsys-rep",), "/gpus"),
    Picture("ranks", RANKS, "/ranks"),
    Picture("maps", RANKS, "/maps?map=nccl_gpu_time_util_map&bins=100"),
    Picture("pace", RANKS, "/pace"),
    Picture("communication", RANKS, "/communication"),
    Picture("compare", RANKS, "/compare"),
    Picture("stacks", (SHARED / "pystacks.nsys-rep",), "/stacks?events=python_samples"),
    Picture("metrics", (FIXTURES / "gpu_metrics.nsys-rep",), "/metrics"),
    Picture("roofline", (FIXTURES / "ncu" / "ncu_roofline_raw.csv",), "/roofline"),
    Picture("graph", (FIXTURES / "tensorflow" / "network.pb",), "/graph"),
    Picture("scalars", (FIXTURES / "tensorflow" / "runs",), "/scalars"),
    Picture("first_compute", (SICK / "fp32.nsys-rep",), "/"),
    Picture("first_launch", (SICK / "launch_bound.nsys-rep",), "/"),
    Picture("first_loader", (SICK / "loader.nsys-rep",), "/", "dark"),
    Picture("first_ranks", STRAGGLER, "/"),
    Picture("first_graph", (SICK / "idle_streams.nsys-rep",), "/", "dark"),
    Picture("first_ncu", (FIXTURES / "ncu" / "ncu_basic.ncu-rep",), "/"),
    Picture("first_dlprof", (DLPROF,), "/"),
    Picture("first_tablet", STRAGGLER, "/", "dark", size=(1024, 768)),
    Picture("first_phone", (SICK / "launch_bound.nsys-rep",), "/", size=(390, 844)),
)


def take(picture: Picture, browser: Browser, viewer: Viewer) -> bytes:
    """Return a picture of a page as PNG."""
    width, height = picture.size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=picture.scheme)  # type: ignore[arg-type]
    with Tab(context.new_page(), viewer) as tab:
        tab.open(picture.url)
        for name in picture.select:
            tab.table(name).select(0)
            tab.wait_for_url(f"{name}.select")
        if picture.scroll:
            tab.table(picture.scroll).panel.evaluate("(e) => scrollTo(0, e.offsetTop - 96)")
        elif picture.select:
            tab.page.evaluate("() => scrollTo(0, 0)")
        tab.page.mouse.move(0, height - 1)
        tab.page.wait_for_load_state("networkidle")
        tab.page.wait_for_timeout(1000)  # animations end
        png = tab.page.screenshot()
    context.close()
    return small(png)


def small(png: bytes) -> bytes:
    """Return a picture with a palette, which is as small as the documentation needs."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colors in COLORS:
        written = io.BytesIO()
        image.quantize(colors, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
        if written.tell() <= MAX_BYTES:
            break
    return written.getvalue()


def main(names: list[str]) -> None:
    """Take all pictures, or those with the given names."""
    from playwright.sync_api import sync_playwright

    chosen = [picture for picture in PICTURES if not names or picture.name in names]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium.executable(), args=SWITCHES)
        for captures, pictures in groupby(chosen, lambda picture: picture.captures):
            if captures == (DLPROF,):
                tk.convert(TRAIN[0], DLPROF, to="dlprof-db", overwrite=True)
            with running(*captures) as viewer:
                for picture in pictures:
                    written = take(picture, browser, viewer)
                    (FOLDER / f"view_{picture.name}.png").write_bytes(written)
                    print(f"{picture.name}: {len(written):,} bytes")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
