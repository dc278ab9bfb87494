"""Compute the report on congested network devices.

The report was compared with nsys only on synthetic exports, because no available capture has network metrics.
"""

from __future__ import annotations

import polars as pl

from tracekit.core.reports.names import format_hexadecimal_expr
from tracekit.core.reports.report import Request, has_rows
from tracekit.core.reports.summary import DURATION

_SEND_WAITS = "IB: Send waits"
_METRIC = ("metrics_list_id", "metric_index")
_ORDER = ("start_ns", "is_switch", "card", "metric", "end_ns", "network_device_id", "value")


def network_congestion(request: Request) -> pl.LazyFrame:
    """Periods in which the send waits of a network card or InfiniBand switch exceed a threshold, in ticks per ms.

    As in nsys, the report is empty if the capture has metrics of network cards but does not list the cards.
    """
    names = request.frames("network_metric_names").with_row_index("metric").filter(name=_SEND_WAITS)
    samples = request.frames("network_metrics").filter(pl.col("value") > request.get_integer("ticks_threshold"))
    is_switch = (pl.col("kind").cast(pl.String) == "switch").alias("is_switch")
    waits = samples.join(names.select(*_METRIC, "metric"), on=_METRIC, how="inner").with_columns(is_switch)
    devices = _read_network_cards(request)
    of_cards = waits.filter(~is_switch).join(devices, on="network_device_id", how="inner")
    of_switches = waits.filter(is_switch).with_columns(guid="network_device_id")
    rows = pl.concat([of_cards, of_switches], how="diagonal").sort(_ORDER, maintain_order=True)
    rows = rows.clear() if _lacks_network_cards(request) else rows
    guid = format_hexadecimal_expr(pl.col("guid")).str.strip_prefix("0x").str.to_lowercase()
    return rows.with_columns(DURATION, guid.alias("guid_text"))


def _lacks_network_cards(request: Request) -> bool:
    """Return whether the capture has metrics of network cards, but does not list the cards."""
    samples = request.frames("network_metrics").filter(pl.col("kind").cast(pl.String) == "nic")
    listed = all(has_rows(request.frames, name) for name in ("network_cards", "network_card_devices"))
    return not listed and not samples.select("kind").head(1).collect().is_empty()


def _read_network_cards(request: Request) -> pl.LazyFrame:
    """Return the network cards of a known type.

    The columns are ``network_device_id``, ``card`` (row number of the card), ``guid`` and ``card_type``.
    """
    cards = request.frames("network_cards").with_row_index("card").filter(pl.col("card_type").is_not_null())
    devices = request.frames("network_card_devices").select("nic_id", "network_device_id")
    return devices.join(cards.select("nic_id", "card", "guid", "card_type"), on="nic_id", how="inner")
