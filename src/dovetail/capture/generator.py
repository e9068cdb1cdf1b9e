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
    """Stands in for a default generator of torch's; the real one is not touched while recording."""

    def __init__(self, recorder: Recorder, gpu: int | None = None) -> None:
        """gpu: the number of the GPU; None: the CPU."""
        self._recorder = recorder
        self._gpu = gpu
        self._of = () if gpu is None else (gpu,)
        self.device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        self._state_bytes = default_generator(gpu).get_state().numel()

    def get_state(self) -> torch.Tensor:
        """The state at this point of the program."""
        state = self._recorder.unrecorded(lambda: torch.empty(self._state_bytes, dtype=torch.uint8, device="cpu"))
        self._recorder.record_prim(GET_RNG_STATE, self._of, state)
        return state

    def set_state(self, state: torch.Tensor) -> None:
        """From here on, draws continue from `state`."""
        self._recorder.record_prim(SET_RNG_STATE, (state, *self._of), None)

    def manual_seed(self, seed: int) -> torch.Generator:
        """From here on, draws continue from a fresh state made of `seed`."""
        self._recorder.record_prim(MANUAL_SEED, (int(seed), *self._of), None)
        return default_generator(self._gpu)

    def seed(self) -> int:
        """Refused: the program would depend on the number."""
        raise DataDependentControlFlow(operator="torch.seed")

    def initial_seed(self) -> int:
        """Refused: the program would depend on the number."""
        raise DataDependentControlFlow(operator="torch.initial_seed")
