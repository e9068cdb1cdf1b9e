"""Self-checks of `torch_compat.hidden_fakes`."""

from __future__ import annotations

import torch

from dovetail.torch_compat import fakes, hidden_fakes, traced_maths
from dovetail.torch_compat.checks.difference import first_difference


def check_hidden_fakes() -> str | None:
    """Who asks by the package's name is told that a fake is none, torch's own code apart."""
    fake = fakes.fake_of(fakes.new_fake_mode(), torch.ones(2))
    asked = eval("lambda x: isinstance(x, torch._subclasses.FakeTensor)", {"torch": torch, "__name__": "elsewhere"})
    own = eval("lambda x: isinstance(x, torch._subclasses.FakeTensor)", {"torch": torch, "__name__": "torch.nn"})
    before = asked(fake)
    with hidden_fakes.hidden_fakes():
        during, by_torch = asked(fake), own(fake)
        with traced_maths.traced_maths():  # which stands in for `isinstance`
            handed_on = asked(fake), own(fake)
    answers = (before, during, by_torch, *handed_on, asked(fake))
    wanted = (True, False, True, False, True, True)
    return first_difference(("answers before, during, to torch, handed on, after", answers, wanted))


def check_shown_fakes() -> str | None:
    """Where fakes are hidden, they are shown for a while."""
    before = torch._subclasses.FakeTensor
    with hidden_fakes.hidden_fakes():
        hidden = torch._subclasses.FakeTensor is before
        with hidden_fakes.shown_fakes():
            shown = torch._subclasses.FakeTensor is before
    return first_difference(("hidden, shown", (hidden, shown), (False, True)))


def check_naming_classes() -> str | None:
    """Who asks a fake for its class is told another one, torch's own code apart; it is a fake all the same."""
    fake = fakes.fake_of(fakes.new_fake_mode(), torch.ones(2))
    asked, own = (eval("lambda x: x.__class__", {"__name__": name}) for name in ("elsewhere", "torch.nn"))
    before = asked(fake)
    with hidden_fakes.naming_classes(lambda fake: torch.Tensor):
        during = (asked(fake) is torch.Tensor, own(fake) is before, fakes.is_fake(fake), tuple(fake.shape))
    return first_difference(
        ("during", during, (True, True, True, (2,))),
        ("after", asked(fake) is before, True),
        ("own attribute", "__getattribute__" in vars(type(fake)), False),
    )


CHECKS = (check_hidden_fakes, check_naming_classes, check_shown_fakes)
