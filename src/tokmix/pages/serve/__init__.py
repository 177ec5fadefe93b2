"""A trained or exported model behind HTTP: `tokmix serve MODEL`.

schemas.py  what a request holds and what an answer does     batcher.py  concurrent rows computed together
door.py     host, token, bounds, log and metrics              writer.py   texts being written, as rows of one batch
app.py      the routes                                        server.py   the socket, its time limits, worker processes
"""

from __future__ import annotations

from tokmix.pages.serve.server import ServeSettings, serve

__all__ = ["ServeSettings", "serve"]
