"""A page on this machine for one trained model: type a text, see what it makes of it and what that takes.

engine.py  the model and the one beside it;  ask.py  what a request may hold;  app.py  the routes;  server.py  the socket
"""

from __future__ import annotations

from tokmix.pages.play.server import serve

__all__ = ["serve"]
