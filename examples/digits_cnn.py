"""A small convolutional network learns handwritten digits, with the whole training step compiled, or without.

    python examples/digits_cnn.py                        # compiled
    python examples/digits_cnn.py --without-dovetail     # eager
    python examples/digits_cnn.py --compare              # both, and whether they agree bit by bit

The data comes with scikit-learn: 1,797 images of 8 x 8. The step is ordinary PyTorch: batch norm, dropout, momentum and
a schedule of one cycle that moves both the learning rate and the momentum. `dovetail.compile_step` makes it
one program.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dovetail
from dovetail.inspect.memory import measure_peak

BATCH = 64
_SEED = 0
_TEST_SHARE = 0.25

Step = Callable[[Tensor, Tensor], Tensor]
Digits = tuple[Tensor, Tensor]
"""f32[n, 1, 8, 8] images between 0 and 1, and i64[n] which digit each of them is."""


@dataclass(frozen=True, slots=True)
class Training:
    """What one way of training gave.

    weights: a hash of parameters and running statistics. peak_bytes: of the last step, above weights and momentum.
    seconds: of each step but the last; in the first two the program is made.
    """

    losses: tuple[float, ...]
    accuracy: float
    weights: str
    peak_bytes: int
    seconds: tuple[float, ...]


def digits() -> tuple[Digits, Digits]:
    """Images to train with, and images to test with, always the same ones."""
    datasets = importlib.import_module("sklearn.datasets")
    selection = importlib.import_module("sklearn.model_selection")
    data = datasets.load_digits()
    found = selection.train_test_split(
        data.images, data.target, test_size=_TEST_SHARE, random_state=_SEED, stratify=data.target
    )
    train_images, test_images, train_labels, test_labels = map(torch.as_tensor, found)

    def scaled(images: Tensor) -> Tensor:
        return (images.float() / 16.0).unsqueeze(1)

    return (scaled(train_images), train_labels.long()), (scaled(test_images), test_labels.long())


def make_model() -> nn.Module:
    """Four convolutions with batch norm, and a classifier behind dropout."""
    layers: list[nn.Module] = []
    channels_in = 1
    for channels in (32, 32, 64, 64):
        layers += [
            nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        ]
        if channels_in == 32:
            layers += [nn.MaxPool2d(2), nn.Dropout(0.1)]
        channels_in = channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.4), nn.Linear(64 * 2 * 2, 10))


def make_step(model: nn.Module, steps: int) -> Step:
    """One training step, as anybody would write it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=steps)

    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels, label_smoothing=0.05)
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step


def batches(data: Digits, epochs: int) -> Iterator[Digits]:
    """Full batches in a new order in each epoch, drawn from a generator of their own."""
    images, labels = data
    generator = torch.Generator().manual_seed(_SEED)
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        for start in range(0, len(images) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            yield images[chosen], labels[chosen]


def train(epochs: int, *, with_dovetail: bool, show: Callable[[str], None] = print) -> Training:
    """Train from the same weights, batches and dropout masks as any other call of it does."""
    train_data, test_data = digits()
    torch.manual_seed(_SEED)
    model = make_model()
    todo = list(batches(train_data, epochs))
    steps_per_epoch = len(todo) // epochs
    step = make_step(model, len(todo))
    if with_dovetail:
        step = dovetail.compile_step(step)

    losses: list[Tensor] = []
    seconds: list[float] = []
    peak_bytes = 0
    for number, batch in enumerate(todo, 1):
        started = time.perf_counter()
        if number < len(todo):
            losses.append(step(*batch))
            seconds.append(time.perf_counter() - started)
        else:  # the recorder of memory takes time
            report = measure_peak(step, *batch)
            losses.append(report.result)
            peak_bytes = report.peak_bytes
        if number % steps_per_epoch == 0:
            mean = torch.stack(losses[-steps_per_epoch:]).mean().item()
            right = accuracy(model, test_data)
            show(f"  epoch {number // steps_per_epoch:2}: loss {mean:.4f}, test accuracy {right:.2%}")
    if isinstance(step, dovetail.CompiledStep):
        show(f"  {step.stats}")
    curve = tuple(loss.item() for loss in losses)
    return Training(curve, accuracy(model, test_data), digest(model), peak_bytes, tuple(seconds))


def accuracy(model: nn.Module, data: Digits) -> float:
    """The share of images that are recognised; the model is left in training mode."""
    images, labels = data
    model.eval()
    with torch.no_grad():
        right = int((model(images).argmax(1) == labels).sum())
    model.train()
    return right / len(images)


def digest(model: nn.Module) -> str:
    """A hash of every bit of the parameters and buffers."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def told(training: Training) -> str:
    """One line on the result and what it took."""
    usual = statistics.median(training.seconds[2:] or training.seconds)
    return (
        f"test accuracy {training.accuracy:.2%} after {len(training.losses)} steps; first two steps "
        f"{sum(training.seconds[:2]):.2f} s, later {usual * 1e3:.1f} ms each; peak memory of a step "
        f"{training.peak_bytes / 2**20:.2f} MiB above weights and momentum"
    )


def compared(dovetails: Training, eagers: Training) -> str:
    """Whether both are the same, bit by bit. Raises: SystemExit when they are not."""
    same = sum(one == other for one, other in zip(dovetails.losses, eagers.losses, strict=True))
    if same != len(eagers.losses) or dovetails.weights != eagers.weights:
        raise SystemExit(f"the trainings differ: {same} of {len(eagers.losses)} losses are the same")
    return f"all {same} losses and every bit of the weights are the same with dovetail and without"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with dovetail, without, or both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--without-dovetail", action="store_true", help="train in eager mode")
    which.add_argument("--compare", action="store_true", help="train both ways and compare them bit by bit")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    found = {}
    for with_dovetail in (False, True) if given.compare else (not given.without_dovetail,):
        print("with dovetail" if with_dovetail else "eager")
        found[with_dovetail] = train(given.epochs, with_dovetail=with_dovetail)
        print(f"  {told(found[with_dovetail])}")
    if given.compare:
        print(compared(found[True], found[False]))


if __name__ == "__main__":
    main()
