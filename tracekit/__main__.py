"""Entry point of the program ``tracekit``. Signal handlers are installed before anything else is imported."""

import gc
import os

from tracekit import interrupts

STANDARD_STREAMS = 3
OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Allocated objects between two garbage collections. Python's default of 700 makes short commands about 5 % slower."""


def main() -> None:
    """Run the command line and exit with its exit status."""
    interrupts.install_handlers()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    _open_null_device_for_closed_streams()
    from tracekit import cli

    try:
        cli.main()
    finally:
        interrupts.ignore_signals()


def _open_null_device_for_closed_streams() -> None:
    """Open the null device for each closed standard stream.

    Otherwise, the next file that is opened would get the descriptor of that stream and receive its output.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD_STREAMS:
        pass
    os.close(descriptor)


if __name__ == "__main__":
    main()
