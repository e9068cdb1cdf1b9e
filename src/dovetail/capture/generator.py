"""Reads and writes of the random generator's state as program nodes.

Checkpointing saves the state of the generator in forward and puts it back before it recomputes; a recorded program must
do the same when it runs. While recording, torch's functions on the default generator talk to this stand-in.
"""

from __future__ import annotations

import torch

from dovetail.capture.recorder import Recorder
from dovetail.errors import DataDependentControlFlow
from dovetail.ops.prims import GET_RNG_STATE, MANUAL_SEED, SET_RNG_STATE
from dovetail.torch_compat.rng import default_generator


class RecordedGenerator:
    """Stands in for `torch.default_generator`; the real one is not touched while recording."""

    device = torch.device("cpu")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._state_bytes = default_generator().get_state().numel()

    def get_state(self) -> torch.Tensor:
        """The state at this point of the program."""
        state = self._recorder.unrecorded(lambda: torch.empty(self._state_bytes, dtype=torch.uint8))
        self._recorder.record_prim(GET_RNG_STATE, (), state)
        return state

    def set_state(self, state: torch.Tensor) -> None:
        """From here on, draws continue from `state`."""
        self._recorder.record_prim(SET_RNG_STATE, (state,), None)

    def manual_seed(self, seed: int) -> torch.Generator:
        """From here on, draws continue from a fresh state made of `seed`."""
        self._recorder.record_prim(MANUAL_SEED, (int(seed),), None)
        return default_generator()

    def seed(self) -> int:
        """Refused: the program would depend on the number."""
        raise DataDependentControlFlow(operator="torch.seed")

    def initial_seed(self) -> int:
        """Refused: the program would depend on the number."""
        raise DataDependentControlFlow(operator="torch.initial_seed")
