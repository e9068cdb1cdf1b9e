"""A training step inside transformers' Trainer, Accelerate, Lightning and Fabric, compiled or in eager mode.

    python examples/train_with_libraries.py trainer               # compiled
    python examples/train_with_libraries.py lightning --compare   # both ways, and whether they agree bit by bit

Each recipe compiles what the library calls for a batch. Data loaders, loggers and callbacks stay where they are.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dovetail

Step = Callable[[Tensor, Tensor], Tensor]
Compile = Callable[..., Any]  # dovetail.compile_step, or a function that returns the step as it is


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 3))


def batches() -> DataLoader[Any]:
    rows = torch.randn(64, 8)
    return DataLoader(TensorDataset(rows, rows[:, :3].argmax(1)), batch_size=8, shuffle=True)


def adam_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def body(model: nn.Module, optimizer: torch.optim.Optimizer, backward: Callable[[Tensor], None]) -> Step:
    def step(rows: Tensor, classes: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(rows), classes)
        backward(loss)
        optimizer.step()
        return loss.detach()

    return step


def train(step: Step, loader: Any) -> None:
    for rows, classes in loader:
        step(rows, classes)


def trainer(compiled: Compile) -> nn.Module:
    """transformers: override `training_step`; `keep_grads`, because the Trainer clips and logs gradients after it."""
    transformers: Any = importlib.import_module("transformers")

    class CompiledTrainer(transformers.Trainer):  # type: ignore[misc]
        _step: Any = None

        def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
            if self._step is None:
                self._step = compiled(super().training_step, keep_grads=True)
            loss: Tensor = self._step(model, inputs, num_items_in_batch)
            return loss

    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16)
    model: nn.Module = transformers.GPT2LMHeadModel(config)
    texts = torch.randint(50, (32, 12))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=8, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True
        )
        CompiledTrainer(model, arguments, train_dataset=[{"input_ids": x, "labels": x} for x in texts]).train()
    return model


def accelerate(compiled: Compile) -> nn.Module:
    """Accelerate: compile the body of the loop."""
    accelerator: Any = importlib.import_module("accelerate").Accelerator(cpu=True)
    wrapped, optimizer, loader = accelerator.prepare(model := net(), adam_of(model), batches())
    train(compiled(body(wrapped, optimizer, accelerator.backward)), loader)
    return model


def lightning(compiled: Compile) -> nn.Module:
    """Lightning: manual optimisation; compile what `training_step` does with a batch, and log outside."""
    library: Any = importlib.import_module("lightning")

    class Classifier(library.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.net = net()
            self.step = compiled(self.learn)

        def learn(self, rows: Tensor, classes: Tensor) -> Tensor:
            return body(self.net, self.optimizers(), self.manual_backward)(rows, classes)

        def training_step(self, batch: Any, number: int) -> None:
            self.log("loss", self.step(*batch))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adam_of(self)

    model = Classifier()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    library.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(model, batches())
    return model.net


def fabric(compiled: Compile) -> nn.Module:
    """Fabric, with bfloat16 autocast: compile the body of the loop."""
    library: Any = importlib.import_module("lightning.fabric")
    fabric = library.Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    wrapped, optimizer = fabric.setup(model := net(), adam_of(model))
    train(compiled(body(wrapped, optimizer, fabric.backward)), fabric.setup_dataloaders(batches()))
    return model


RECIPES = {recipe.__name__: recipe for recipe in (trainer, accelerate, lightning, fabric)}


def main(arguments: list[str] | None = None) -> None:
    """Train. Raises: SystemExit where compiled and eager weights differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--compare", action="store_true", help="train in eager mode, too")
    options, steps = parser.parse_args(arguments), list[dovetail.CompiledStep]()

    def compiled(step: Any, **settings: Any) -> Any:
        steps.append(dovetail.compile_step(step, **settings))
        return steps[-1]

    weights = []
    for way in (compiled, lambda step, **_: step)[: 1 + options.compare]:
        torch.manual_seed(0)
        weights.append(RECIPES[options.recipe](way).state_dict())
    print(steps[0].stats)
    if options.compare:
        if not all(map(torch.equal, *(held.values() for held in weights))):
            raise SystemExit("the weights differ")
        print("every bit of the weights is the same, compiled and in eager mode")


if __name__ == "__main__":
    main()
