"""Lets ``python -m tracekit`` run the command line."""

from tracekit.cli import main

if __name__ == "__main__":
    main()
