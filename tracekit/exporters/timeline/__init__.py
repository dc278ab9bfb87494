"""The events, tracks, lanes and arrows of a timeline, which the exporters of Chrome and Perfetto traces share.

``options`` declares the option that chooses tracks, ``kinds`` declares the kinds of events and their arguments, and
``tracks`` declares their tracks. ``layout`` assigns events to tracks, ``lanes`` separates overlapping slices, and
``arrows`` finds the arrows between events. ``columns`` evaluates what kinds declare, and ``batches`` writes the file.
"""
