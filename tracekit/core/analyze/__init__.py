"""Apply rules that find performance problems.

The rules of ``nsys analyze`` list the same rows as nsys. Other rules exist only in tracekit.

To add a rule, declare it in ``schemas/analyses/rules.toml``, and write the function that finds the rows in the module
of its subject.
"""
