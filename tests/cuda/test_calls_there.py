"""Code that speaks of the GPU itself (moves, streams, events, memory): as in eager mode, or refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dovetail
from dovetail.errors import DovetailError


def _moved(net: nn.Module, x: Tensor, device: str) -> Tensor:
    return net(x.cpu().to(device, non_blocking=True))


def _by_name(net: nn.Module, x: Tensor, device: str) -> Tensor:
    return net(x.cpu().to(torch.device(device)))


def _pinned(net: nn.Module, x: Tensor, device: str) -> Tensor:
    return net(x.cpu().pin_memory().to(device, non_blocking=True)) if device == "cuda" else net(x)


def _asked(net: nn.Module, x: Tensor, device: str) -> Tensor:
    loss = net(x).sum()
    return loss * 2 if loss.item() > 0 else loss


def _synchronized(net: nn.Module, x: Tensor, device: str) -> Tensor:
    y = net(x)
    if device == "cuda":
        torch.cuda.synchronize()
    return y


def _on_a_stream(net: nn.Module, x: Tensor, device: str) -> Tensor:
    if device != "cuda":
        return net(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = net(x)
    torch.cuda.current_stream().wait_stream(stream)
    return y


def _timed(net: nn.Module, x: Tensor, device: str) -> Tensor:
    if device != "cuda":
        return net(x)
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    y = net(x)
    event.synchronize()
    return y


def _measured(net: nn.Module, x: Tensor, device: str) -> Tensor:
    y = net(x)
    return y if device != "cuda" or torch.cuda.memory_allocated() > 0 else y * 2


def _drawn(net: nn.Module, x: Tensor, device: str) -> Tensor:
    return net(x + torch.randn(x.shape, device=device) + torch.randn(x.shape, device="cpu").to(device))


def _in_tensor_cores(net: nn.Module, x: Tensor, device: str) -> Tensor:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return net(x)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


_CALLS = (
    *(_moved, _by_name, _pinned, _asked, _synchronized),
    *(_on_a_stream, _timed, _measured, _drawn, _in_tensor_cores),
)


def _step_of(forward: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        loss = forward(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize("door", ["step", "compile"])
def test_call(device: str, call: Callable[[nn.Module, Tensor, str], Tensor], door: str) -> None:
    ends = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        net = nn.Linear(32, 32).to(device)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def forward(x: Tensor, net: nn.Module = net) -> Tensor:
            return call(net, x, device)

        if is_compiled and door == "compile":
            forward = dovetail.compile(forward)

        step = _step_of(forward, optimizer)
        run = dovetail.compile_step(step) if is_compiled and door == "step" else step
        try:
            losses = [run(torch.randn(8, 32, device=device)) for _ in range(4)]
        except DovetailError as error:
            pytest.skip(f"refused by name: {error}")
        if is_compiled and door == "step":
            print(run.stats)
        ends.append([*losses, *net.state_dict().values(), torch.get_rng_state(), *torch.cuda.get_rng_state_all()])
    assert all(map(torch.equal, *ends))
