"""Analyze loaded traces: functions from polars frames to polars frames that neither read files nor know formats."""
