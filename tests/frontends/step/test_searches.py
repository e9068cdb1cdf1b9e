"""Steps that call LBFGS: the search runs in Python, and one program serves its closures."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dovetail
from dovetail.frontends.step.reachable_state import ReachableState


@pytest.mark.parametrize("options", [{}, {"line_search_fn": "strong_wolfe"}], ids=["fixed", "line search"])
@pytest.mark.parametrize("is_inside", [True, False], ids=["closure made in each step", "one closure"])
def test_searches_agree_with_eager_mode(options: dict[str, Any], is_inside: bool) -> None:
    found, run = [], None
    for compiled in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4, **options)
        batch = [torch.zeros(5, 3)]

        def closure() -> torch.Tensor:
            optimizer.zero_grad()  # noqa: B023
            loss = (net(batch[0]) - 1).square().mean()  # noqa: B023
            loss.backward()
            return loss

        def step(x: torch.Tensor) -> torch.Tensor:
            batch[0].copy_(x)  # noqa: B023

            def inside() -> torch.Tensor:
                optimizer.zero_grad()  # noqa: B023
                loss = (net(x) - 1).square().mean()  # noqa: B023
                loss.backward()
                return loss

            loss: Any = optimizer.step(inside if is_inside else closure)  # noqa: B023
            return loss.detach()

        run = dovetail.compile_step(step) if compiled else step
        generator = torch.Generator().manual_seed(1)
        seen = []
        for _ in range(20):
            loss = run(torch.randn(5, 3, generator=generator))
            seen.append([loss.item(), *(p.grad.tolist() for p in net.parameters()), net[0].weight.tolist()])
        found.append((seen, repr(optimizer.state_dict()["state"][0]["func_evals"])))
    assert found[0] == found[1]
    assert run.stats.captures == 1 + is_inside, run.stats  # the batch is one of the closure's variables
    assert len(run.stats.variants) == 1


def test_closures_with_variables_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives a variable another value is compiled as it is; one that does not is found without a walk."""
    walks, refresh = [], ReachableState.refresh
    monkeypatch.setattr(ReachableState, "refresh", lambda self: (walks.append(1), refresh(self)))
    for counts in (False, True):
        found = []
        for compiled in (False, True):
            torch.manual_seed(0)
            net = torch.nn.Linear(3, 1)
            optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3)

            def step(x: torch.Tensor, rate: float) -> Any:
                calls = 0

                def counting() -> torch.Tensor:
                    nonlocal calls
                    calls += 1
                    return plain()

                def plain() -> torch.Tensor:
                    optimizer.zero_grad()  # noqa: B023
                    loss = (net(x) - rate).square().mean()  # noqa: B023
                    loss.backward()
                    return loss

                loss: Any = optimizer.step(counting if counts else plain)  # noqa: B023
                return loss.item(), calls

            run = dovetail.compile_step(step) if compiled else step
            seen = []
            for n in range(12):
                if n == 8:
                    walks.clear()
                seen.append((run(torch.full((4, 3), n / 10), 0.1 * n), net.weight.tolist()))
            found.append(seen)
        assert found[0] == found[1]
        assert counts or walks == []
