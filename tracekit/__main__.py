"""The program ``tracekit``: signals are handled before anything else is imported."""

import os

from tracekit import interrupts

STANDARD_STREAMS = 3


def main() -> None:
    """Run the command line and exit with its status."""
    interrupts.install_handlers()
    _occupy_closed_streams()
    from tracekit import cli

    try:
        cli.main()
    finally:
        interrupts.ignore_signals()


def _occupy_closed_streams() -> None:
    """Keep a file that is opened from getting the number of a standard stream, and with it what others print."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD_STREAMS:
        pass
    os.close(descriptor)


if __name__ == "__main__":
    main()
