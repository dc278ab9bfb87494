"""Entry point of the program ``tracekit``, which installs signal handlers before it imports the command line."""

import gc
import os

from tracekit.system import interrupts

STANDARD_STREAMS = 3
GC_THRESHOLDS = (400_000, 20, 10)
"""Thresholds of the garbage collector. A first collection has to look at the objects of all imported modules.

A command for a small capture creates fewer objects, so it runs without any collection, which saves 20 to 40 ms.
"""


def main() -> None:
    """Run the command line and exit with its exit status."""
    interrupts.install_signal_handlers()
    gc.set_threshold(*GC_THRESHOLDS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy starts a thread per core, which takes 1.8 s on 16 cores
    _open_null_device_for_closed_streams()
    from tracekit import cli
    from tracekit.system.platform import console

    console.accept_all_characters()
    try:
        cli.main()
    finally:
        interrupts.ignore_signals()
        gc.freeze()  # The interpreter collects garbage several times when it exits, which takes 50 ms or more.


def _open_null_device_for_closed_streams() -> None:
    """Open the null device for each closed standard stream.

    Otherwise, the next file that is opened would get the descriptor of that stream and receive its output.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD_STREAMS:
        pass
    os.close(descriptor)


if __name__ == "__main__":
    main()
