"""What is recorded may call functions that Dynamo looks at: dovetail's own code is none of them."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo

from dovetail.reach.libraries import OURS
from dovetail.reach.watcher import noted_reads

FACTOR = 2


def doubled(x: int) -> int:
    return FACTOR * x


def test_dynamo_is_not_asked_about_code_that_follows_frames() -> None:
    asked: list[str] = []

    def note(frame: Any, *_: object) -> Any:
        asked.append(frame.f_code.co_filename)
        return torch._dynamo.types.ConvertFrameReturn(apply_to_code=False)  # ask again next time

    callback: Any = note
    with noted_reads([doubled]) as reads:
        before = torch._dynamo.eval_frame.set_eval_frame(callback)
        try:
            assert doubled(3) == 6
        finally:
            torch._dynamo.eval_frame.set_eval_frame(before)
    assert (id(globals()), "FACTOR") in reads.namespaces
    assert __file__ in asked
    assert not [file for file in asked if file.startswith(OURS)]
