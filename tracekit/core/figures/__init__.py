"""Compute the tables that charts display, reduced to a few thousand rows regardless of the size of the capture.

``overview`` summarizes a roll-up, ``totals`` adds up activities by name, ``timeline`` samples values over time, and
``trees`` reduces trees of groups and of NVTX ranges to their largest nodes.
"""
