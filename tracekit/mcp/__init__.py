"""Answer the questions of assistants about captures, as a server of the Model Context Protocol.

The server accepts calls, checks paths and divides answers into pages. A worker process, which it starts and may end,
opens the captures and computes the answers, so that no capture can stop the server.

``server`` declares the tools and serves them, ``roots`` checks paths, ``paging`` divides answers, ``process`` controls
the worker, which runs ``worker``. In the worker, ``questions`` computes the answers, ``sql`` runs queries and
``private_text`` masks private values. ``resources`` describes tables, analyses and causes.
"""
