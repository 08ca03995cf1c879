"""The `fewpairs` command. No logic of its own: it calls public names and prints what they return.

A file for each command; `app` puts them together.
"""

from fewpairs.cli.app import app

__all__ = ["app"]
