"""Events, tracks, lanes and flows of a timeline, shared by the exporters of Chrome and Perfetto traces.

- ``exporter`` creates the exporter of a format, and ``options`` declares the option that selects tracks.
- ``kinds`` declares the kinds of events and their arguments, and ``tracks`` declares their tracks.
- ``layout`` assigns events to tracks, and ``lanes`` separates overlapping slices of a track.
- ``flows`` determines the flows, which are drawn as arrows from one event to another.
- ``blocks`` reads events in blocks of rows.
- ``batches`` writes the file.
"""
