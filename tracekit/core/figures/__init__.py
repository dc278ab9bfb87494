"""Compute the frames that charts show, reduced to a few thousand rows however large the capture is.

``overview`` summarizes a roll-up, ``totals`` adds up activities by name, ``timeline`` samples values over time, and
``trees`` reduces trees of groups and of NVTX ranges to their largest nodes.
"""
