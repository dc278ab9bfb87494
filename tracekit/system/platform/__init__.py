"""What differs between operating systems, with a way that works on every system beside each special one.

No other module of tracekit uses a function that only some systems have. Each module here stands for one idea, and
chooses between its ways by what the running system offers, not by the name of the system. Therefore, the portable ways
also run on Linux when a function is missing.
"""
