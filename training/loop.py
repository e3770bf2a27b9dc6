"""One training loop for every stage: warm-up and decay, EMA, a JSON-lines log, resumable checkpoints."""

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from training import workers
from training.optimizer import make_optimizers
from training.paths import stage_dir

Loss = Callable[[int, torch.Generator], torch.Tensor]


@dataclass
class Recipe:
    """How one stage trains."""

    stage: str
    steps: int
    learning_rate: float = 1e-3
    warmup: int = 100
    decay: float = 0.33
    ema_decay: float = 0.999
    save_every: int = 50
    report_every: int = 600
    muon: bool = False
    clip: float = 1.0


def scale_at(step: int, recipe: Recipe) -> float:
    """Learning-rate factor: linear warm-up, constant, and a cosine to 2 % over the last third.

    Constant in between, so that a run can be prolonged (raise `steps`) without a jump.
    """
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    remaining = (recipe.steps - step) / max(1.0, recipe.steps * recipe.decay)
    return 0.02 + 0.98 * 0.5 * (1 - math.cos(math.pi * min(1.0, remaining)))


def write_atomically(path: Path, state: dict) -> None:
    """A stopped process leaves the old checkpoint or the new one, never half of one."""
    temporary = path.with_suffix(".partial")
    torch.save(state, temporary)
    os.replace(temporary, path)


class Trainer:
    """Trains `model` in place and keeps `average`, the moving average of its weights."""

    def __init__(self, model: nn.Module, recipe: Recipe):
        self.model, self.recipe = model, recipe
        self.folder = stage_dir(recipe.stage)
        self.path = self.folder / "checkpoint.pt"
        self.optimizers = make_optimizers(model, recipe.learning_rate, recipe.muon)
        self.peaks = [[group["lr"] for group in opt.param_groups] for opt in self.optimizers]
        self.average = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
        self.step = 0
        self.seconds = 0.0
        if self.path.exists():
            self.restore()

    def restore(self) -> None:
        state = torch.load(self.path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        state = dict(model=self.model.state_dict(), average=self.average, optimizers=states)
        write_atomically(self.path, state | dict(step=self.step, seconds=self.seconds))

    def use_average(self) -> nn.Module:
        """Put the averaged weights into the model: what is sampled from and shipped."""
        self.model.load_state_dict(self.average, strict=False)
        return self.model.eval()

    def run(self, loss: Loss, report: Callable[["Trainer"], None] | None = None) -> None:
        """Train up to `recipe.steps`, from wherever the checkpoint stands."""
        losses, started = [], time.time()
        while self.step < self.recipe.steps:
            losses.append(self.update(loss))
            if workers.rank() > 0:
                continue
            if self.step % 20 == 0:
                self.seconds += time.time() - started
                started = time.time()
                self.log(sum(losses) / len(losses))
                losses = []
            last = self.step == self.recipe.steps
            if self.step % self.recipe.save_every == 0 or last:
                self.save()
            if self.step % self.recipe.report_every == 0 or last:
                self.show(report)
                started = time.time()

    def update(self, loss: Loss) -> float:
        generator = torch.Generator().manual_seed(self.step * workers.count() + workers.rank())
        factor = scale_at(self.step, self.recipe)
        for optimizer, peaks in zip(self.optimizers, self.peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
        self.model.train()
        value = loss(self.step, generator)
        value.backward()
        workers.average_gradients(list(self.model.parameters()))
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        self.update_average()
        return value.item()

    @torch.no_grad()
    def update_average(self) -> None:
        # A short memory at first: otherwise random initial weights linger in the average.
        decay = min(self.recipe.ema_decay, self.step / (self.step + 10))
        live = dict(self.model.named_parameters())
        names = list(self.average)
        torch._foreach_lerp_([self.average[n] for n in names], [live[n].detach() for n in names], 1 - decay)

    def log(self, loss: float) -> None:
        line = dict(step=self.step, loss=round(loss, 5), seconds=round(self.seconds, 1))
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    def show(self, report: Callable[["Trainer"], None] | None) -> None:
        """Run `report` on the averaged weights, then put the live ones back."""
        if report is None:
            return
        live = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.use_average()
        threads = torch.get_num_threads()
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # the other workers wait meanwhile
        # Reports draw other shapes than training: compiling for them would take longer than drawing.
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            report(self)
        torch.set_num_threads(threads)
        self.model.load_state_dict(live, strict=False)
