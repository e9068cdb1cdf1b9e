"""Progress bars and trackers of libraries: while a step is recorded, what they are told is noted as host calls.

They show, or send away, what they get, and the step gets nothing back.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_BAR = ("update", "set_postfix", "set_postfix_str", "set_description", "set_description_str", "write", "refresh")
_WRITER = (
    *("add_scalar", "add_scalars", "add_text", "add_histogram", "add_image", "add_images", "add_figure", "add_graph"),
    *("add_embedding", "add_hparams", "add_pr_curve", "add_video", "add_audio", "add_mesh", "add_tensor", "flush"),
)
_KNOWN: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("tqdm.std", "tqdm", _BAR),
    ("tqdm.notebook", "tqdm_notebook", _BAR),
    ("torch.utils.tensorboard.writer", "SummaryWriter", _WRITER),
    ("tensorboardX.writer", "SummaryWriter", _WRITER),
    ("wandb", "", ("log",)),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
    ("torch.profiler.profiler", "profile", ("step",)),
    ("mlflow", "", ("log_metric", "log_metrics")),
    ("mlflow.tracking.fluent", "", ("log_metric", "log_metrics")),
)
Note = Callable[[Callable[..., Any], Any, Any], None]


@contextlib.contextmanager
def trackers_replaced(note: Note) -> Iterator[None]:
    """While active, `note` gets what this thread tells the trackers that are imported: function, arguments."""
    with contextlib.ExitStack() as stack:
        for home, kind, names in _KNOWN:
            module = sys.modules.get(home)
            owner = getattr(module, kind, None) if kind else module
            for name in names if owner is not None else ():
                before = vars(owner).get(name)
                if before is not None:
                    stack.callback(setattr, owner, name, before)
                    setattr(owner, name, _stub(owner, before, note))
        yield


def _stub(owner: Any, before: Any, note: Note) -> Any:
    thread = threading.get_ident()
    if isinstance(before, classmethod):
        bound = before.__get__(None, owner)
        return staticmethod(_noted(bound, note, thread))
    return _noted(before, note, thread)


def _noted(function: Callable[..., Any], note: Note, thread: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or _is_torchs_own(sys._getframe(1)):
            return function(*args, **kwargs)
        note(function, args, kwargs)
        return None

    return call


def _is_torchs_own(frame: FrameType) -> bool:
    """Whether torch, or this package, calls for itself: graphs that run show bars, which are switched off."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("torch", "dovetail")
