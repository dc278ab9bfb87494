"""Builders of captures, tables and programs that several tests share.

A builder returns data with known content; it does not use the code that is tested. A module is named after the format
or the part of the package whose data it builds:

- Tables: ``strategies`` (random tables of any declared table), ``frames`` (a few rows, as the core reads them),
  ``ranks`` (folders of tables, one per rank) and ``communication`` (calls of several ranks).
- Programs: ``programs`` (a few events, whose steps are diagnosed), ``random_programs``, ``jobs`` (several ranks),
  ``pytorch_programs`` (ranges and kernels as PyTorch records them) and ``training_runs`` (with the noise of real runs).
- Files: ``nsys_sqlite``, ``nsys_rep``, ``nsys_rep_events``, ``nsys_folders``, ``ncu_csv``, ``ncu_rep``, ``kineto``,
  ``torch_ranks``, ``tfevents`` and ``dlprof_db``. They build files, or take real ones apart, change them, and build
  them again.
- Hostile input: ``bombs`` (small files that announce much data) and ``private_values`` (what ``redact`` removes).
"""
