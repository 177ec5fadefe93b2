"""A page on this machine for one trained model: type a text, and see the model's answer, its time and its memory.

engine.py  the two models;  schemas.py  the requests;  app.py  the routes;  server.py  the socket
"""

from __future__ import annotations

from tokmix.pages.play.server import serve

__all__ = ["serve"]
