"""Texts of numbers that a step computes: told in each call as in eager mode, or refused where they are read."""

# ruff: noqa: UP031, UP032

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dovetail
from dovetail.errors import UnsupportedStep
from tests.frontends.step.agreement import programs_of

Step = Callable[..., Any]
logger = logging.getLogger("tests.texts")
FORM = "%6.2f"


def told(act: Callable[..., Any], capsys: Any, calls: int = 4, **options: Any) -> tuple[Any, Any]:
    """What a step that ends with `act(loss, number)` tells and returns, eager and compiled, which agree; its stats."""
    found, stats = [], None
    for compiled in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor, number: int) -> Any:
            optimizer.zero_grad()  # noqa: B023
            loss = net(x).square().mean()  # noqa: B023
            loss.backward()
            optimizer.step()  # noqa: B023
            return act(loss, number)

        run = dovetail.compile_step(step, **options) if compiled else step
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
        results = [run(torch.full((2, 3), 0.1 * n + 0.1), n) for n in range(calls)]
        found.append((results, capsys.readouterr(), stream.getvalue()))
        stats = run.stats if compiled else None
    assert repr(found[0]) == repr(found[1])
    return found[1], stats


def formatted(loss: torch.Tensor, n: int) -> None:
    print(f"loss {loss.item():.3f}", f"{loss.item() * 2:>12.3e}|{loss.item()!r}", loss.item() > 0)


def by_method(loss: torch.Tensor, n: int) -> None:
    print("loss {:.2f} and {}".format(loss.item(), "more"), "{x:5.1f}".format(x=loss.item()))


def by_percent(loss: torch.Tensor, n: int) -> None:
    print("%.3f after %d, %s" % (loss.item(), 3, "x"), FORM % loss.item(), "%g %%" % (100 * loss.item()))
    print("%(loss).4e" % {"loss": loss.item()}, "%s" % loss.item(), "%r" % loss.item())


def by_hand(loss: torch.Tensor, n: int) -> None:
    text = "loss: " + str(loss.item())
    text += f" and {loss.item():.1f}"
    print(text, text * 2, sep="\n", end=f"\n{loss.item():.5f}\n")


def joined(loss: torch.Tensor, n: int) -> None:
    metrics = {"loss": loss.item(), "twice": 2 * loss.item()}
    parts = []
    for name, value in metrics.items():
        parts.append(f"{name}: {value:.3f}")
    print(
        ", ".join(parts), " ".join(f"{k}={v:.2f}" for k, v in metrics.items()), *[f"{v:.1f}" for v in metrics.values()]
    )
    print(metrics, [loss.item()], f"{metrics}")


def by_function(loss: torch.Tensor, n: int) -> None:
    def shown(number: float, digits: int = 3) -> str:
        return f"{number:.{digits}f}"

    def tell(message: str, level: int) -> None:
        if level > 1:
            print(message)

    tell(shown(loss.item()), 2)
    tell(message=shown(loss.item(), 2) + "!", level=3)


def tensors(loss: torch.Tensor, n: int) -> None:
    print(loss, loss.detach(), f"{loss} {loss:.2f} {loss.detach()}", str(loss), repr(loss.detach().repeat(2)))


def logged(loss: torch.Tensor, n: int) -> None:
    logger.info("loss %s", loss.item())
    logger.info(f"loss {loss.item():.3f}")
    logger.info("loss %.3f of %s", loss.item(), loss)
    logger.warning("{:.1f}".format(loss.item()))


def written(loss: torch.Tensor, n: int) -> None:
    print("first")
    sys.stdout.write(f"{loss.item():.3f}\n")
    print(f"{loss.item():.2f}", file=sys.stderr)
    print("last", flush=True)


def returned(loss: torch.Tensor, n: int) -> Any:
    text = f"{loss.item():.3f}"
    return {"text": text, "both": [loss.item(), text], "loss": loss}


def maybe(loss: torch.Tensor, n: int) -> None:
    text = f"{loss.item():.3f}" if loss.item() > 0 else "negative"
    if text:
        print(text or "none", "x" if text is None else "y")


def numbered(loss: torch.Tensor, n: int) -> None:
    print(f"step {n}: {loss.item():.3f}")


GOOD = (
    *(formatted, by_method, by_percent, by_hand, joined, by_function, tensors, logged, written, returned, maybe),
    numbered,
)


@pytest.mark.parametrize("act", GOOD, ids=lambda act: act.__name__)
def test_texts_are_made_of_the_numbers_of_each_call(act: Callable[..., Any], capsys: Any) -> None:
    _, stats = told(act, capsys)
    assert programs_of(stats) + stats.eager_calls == 2, stats.variants  # the number is an input from the second call on


def compared(loss: torch.Tensor) -> None:
    if f"{loss.item():.3f}" == "0.100":
        print("found")


def measured(loss: torch.Tensor) -> None:
    print(len(f"{loss.item():.3f}"))


def cut(loss: torch.Tensor) -> None:
    print(str(loss.item())[:4])


def padded(loss: torch.Tensor) -> None:
    print(f"{loss.item():.3f}".rjust(12))


def padded_again(loss: torch.Tensor) -> None:
    text = f"{loss.item():.3f}"
    print(f"{text:>12}")


def padded_by_percent(loss: torch.Tensor) -> None:
    print("%12s" % str(loss.item()))


def key(loss: torch.Tensor) -> None:
    print({f"{loss.item():.3f}": 1})


def looked_up(loss: torch.Tensor) -> None:
    print({"0.1": 1}.get(f"{loss.item():.3f}"))


def sorted_texts(loss: torch.Tensor) -> None:
    print(sorted([f"{loss.item():.3f}", f"{-loss.item():.3f}"]))


def largest(loss: torch.Tensor) -> None:
    print(max(map(str, [loss.item(), -loss.item()])))


def inside(loss: torch.Tensor) -> None:
    print("0" in f"{loss.item():.3f}")


def each_letter(loss: torch.Tensor) -> None:
    for letter in f"{loss.item():.3f}":
        print(letter)


def compared_elsewhere(loss: torch.Tensor) -> None:
    def is_small(text: str) -> bool:
        return text < "1"

    print(is_small(f"{loss.item():.3f}"))


def compared_in_a_container(loss: torch.Tensor) -> None:
    lines = [f"{loss.item():.3f}"]
    print(lines[0] == "0.100")


def formats_that_look_alike(loss: torch.Tensor) -> None:
    print("%8.3f %.3f" % (1.0, loss.item()))


BAD = (
    *(compared, measured, cut, padded, padded_again, padded_by_percent, key, looked_up, sorted_texts, largest, inside),
    *(each_letter, compared_elsewhere, compared_in_a_container, formats_that_look_alike),
)


@pytest.mark.parametrize("act", BAD, ids=lambda act: act.__name__)
def test_a_text_that_is_read_is_refused_with_the_line(act: Callable[..., Any], capsys: Any) -> None:
    weight = torch.ones(3)

    def step(x: torch.Tensor) -> None:
        loss = (x * weight).sum()
        weight.add_(loss)
        act(loss)

    run = dovetail.compile_step(step)
    run(torch.ones(3))
    before = weight.clone()
    with pytest.raises(UnsupportedStep, match=r"test_texts.py:") as caught:
        run(torch.ones(3))
    first = act.__code__.co_firstlineno
    assert any(f"test_texts.py:{first + n}" in str(caught.value) for n in range(1, 6))
    assert torch.equal(weight, before)


def test_a_text_of_an_input_number_that_is_read_makes_it_a_constant(capsys: Any) -> None:
    def act(loss: torch.Tensor, n: int) -> int:
        text = f"{n}"
        return len(text) + (1 if text == "2" else 0)

    told(act, capsys, calls=5)


def test_an_exception_is_eager_modes_own() -> None:
    def step(x: torch.Tensor) -> None:
        if x.sum().item() > 2:
            raise ValueError(f"too large: {x.sum().item():.1f}")

    run = dovetail.compile_step(step)
    for n in range(6):
        if n > 2:
            with pytest.raises(ValueError, match=f"too large: {float(n)}"):
                run(torch.tensor(float(n)))
        else:
            run(torch.tensor(float(n)))


def test_nothing_is_told_by_a_program_that_is_given_up(capsys: Any) -> None:
    def act(loss: torch.Tensor, n: int) -> None:
        print(f"{loss.item():.3f}")
        if loss.item() > 0.05:
            print("large")

    told(act, capsys, calls=8)


class TestProgressBars:
    """`tqdm` shows what it is told in every call."""

    def test_told_in_every_call(self, capsys: Any) -> None:
        tqdm = pytest.importorskip("tqdm")
        bars: list[Any] = []

        def act(loss: torch.Tensor, n: int) -> tuple[Any, ...]:
            bar = bars[-1]
            bar.set_postfix(loss=loss.item())
            bar.set_description(f"{loss.item():.4f}")
            bar.update(1)
            return ()

        found = []
        for compiled in (False, True):
            bars.append(tqdm.tqdm(total=9, file=io.StringIO(), mininterval=0))
            weight = torch.ones(3)

            def step(x: torch.Tensor) -> None:
                loss = (x * weight).sum()  # noqa: B023
                weight.add_(0.5)  # noqa: B023
                act(loss, 0)

            run = dovetail.compile_step(step) if compiled else step
            shown = []
            for n in range(4):
                run(torch.full((3,), float(n)))
                shown.append((bars[-1].postfix, bars[-1].desc, bars[-1].n))
            found.append(shown)
            bars[-1].close()
        assert found[0] == found[1]
        assert run.stats.captures == 1


class Told:
    """Formats that objects hold."""

    form, named = "%s: %.3f", "loss %(loss).3f at %(number)d"

    def __init__(self) -> None:
        self.forms = {"short": "%.1f"}


TOLD = Told()


def _held_formats(loss: torch.Tensor, number: int) -> None:
    print(TOLD.form % ("loss", loss.item()), TOLD.named % {"loss": loss.item(), "number": number})
    print(TOLD.forms["short"] % loss.item(), "{name} {loss:.3f}".format_map({"name": "a", "loss": loss.item()}))


def test_formats_that_objects_hold(capsys: pytest.CaptureFixture[str]) -> None:
    _, stats = told(_held_formats, capsys)
    assert stats.captures == 2  # the number is an input from the second call on


def test_a_width_that_a_number_tells(capsys: pytest.CaptureFixture[str]) -> None:
    told(lambda loss, number: print(f"{loss.item():>{number + 8}.{number}f}|", f"{loss:<{number + 9}}|"), capsys)
