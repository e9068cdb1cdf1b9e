"""Whatever is missing from the index of a frozen file, loading says so by an error of dovetail's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import dovetail
from dovetail.artifact.container import open_container, write_container
from dovetail.errors import BadArtifact


def test_each_key_of_the_index_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "model.dovetail"
    dovetail.freeze(nn.Linear(2, 2).eval(), (torch.rand(1, 2),)).save(path)
    container = open_container(path)
    index = container.decode("frozen.json", dict)
    assert "torch" in index
    for key in index:
        rest = {name: value for name, value in index.items() if name != key}
        forged = tmp_path / f"without-{key}.dovetail"
        write_container(forged, {"frozen.json": json.dumps(rest).encode()})
        with pytest.raises(BadArtifact):
            dovetail.load(forged)
