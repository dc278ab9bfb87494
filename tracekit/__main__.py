"""The program ``tracekit``: signals are handled before anything else is imported."""

from tracekit import interrupts


def main() -> None:
    """Run the command line and exit with its status."""
    interrupts.watch()
    from tracekit import cli

    try:
        cli.main()
    finally:
        interrupts.ignore()


if __name__ == "__main__":
    main()
