"""The command `dovetail`: look at this machine, and into what was compiled."""

from dovetail.cli.app import main

__all__ = ["main"]
