"""Find the steps of serving and training frameworks in a capture, with their phases, and measure their GPU work.

``annotations`` parses the names of ranges with which frameworks mark their steps. ``steps`` finds the steps and what
they launched.
"""
