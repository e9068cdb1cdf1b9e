"""Train a small GPT in eager mode and with dovetail, a step of each in turn, and compare time, memory and results.

    python examples/train_gpt.py                        # two minutes; needs pip install 'dovetail[demo]'
    python examples/train_gpt.py --with inductor --steps 50

It prints a table and writes a picture, a page, and a report of what dovetail decided for the program that ran.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.run import DemoConfig, run_demo


def config_of(arguments: Sequence[str] | None = None) -> DemoConfig:
    """The options of a command line; those of `sys.argv` when not given."""
    defaults = DemoConfig()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--with", dest="extra", action="append", metavar="BACKEND", default=[], help="also train with it"
    )
    parser.add_argument("--steps", type=_count, default=defaults.steps, help="at most so many for each column")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="train no longer than this")
    parser.add_argument("--threads", type=_count, default=defaults.threads, help="threads for each operator")
    parser.add_argument("--out", type=Path, default=defaults.out_dir, help="folder for the picture and the page")
    parser.add_argument("--seed", type=int, default=defaults.seed, help="of weights, data and dropout masks")
    parser.add_argument("--quick", action="store_true", help="a tiny model and a handful of steps")
    parser.add_argument("--open", action=argparse.BooleanOptionalAction, help="open the report; default: at a terminal")
    given = parser.parse_args(arguments)
    return DemoConfig(
        steps=given.steps,
        seconds=given.seconds,
        threads=given.threads,
        seed=given.seed,
        out_dir=given.out,
        extra=tuple(given.extra),
        quick=given.quick,
        opens=_has_screen() if given.open is None else given.open,
    )


def main() -> None:
    """Run the demonstration."""
    run_demo(config_of())


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(f"{count} is less than 1")
    return count


def _has_screen() -> bool:
    """Whether output goes to a terminal, and a browser would have a screen to show a page on."""
    has_display = sys.platform in ("darwin", "win32") or bool({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys())
    return has_display and sys.stdout.isatty()


if __name__ == "__main__":
    main()
