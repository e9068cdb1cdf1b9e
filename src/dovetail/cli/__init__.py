"""The command `dovetail`: look at this machine, see a demonstration, look into what was compiled."""

from dovetail.cli.app import main

__all__ = ["main"]
