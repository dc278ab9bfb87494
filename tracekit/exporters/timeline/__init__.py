"""The events, tracks, lanes and flows of a timeline, which the exporters of Chrome and Perfetto traces share.

``exporter`` creates the exporter of a format, and ``options`` declares its option that chooses tracks. ``kinds``
declares the kinds of events and their arguments, and ``tracks`` declares their tracks. ``layout`` assigns events to
tracks, ``lanes`` separates overlapping slices, and ``flows`` determines the flows, which are drawn as arrows from one
event to another. ``columns`` evaluates what kinds declare, ``combinations`` numbers combinations of values, and
``batches`` writes the file.
"""
