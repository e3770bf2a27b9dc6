"""Teach a LoRA to take in one step what the teacher takes in five, from recorded runs: four steps instead of twenty.

First every step by itself, from where the teacher stood: the velocity that leads straight to where it stood five steps
later.  Then whole runs of four steps from noise, with gradients through all of them: what counts is where a run ends.
"""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from training import teacher
from training.autoencoder import psnr
from training.loop import Trainer
from training.lowrank import attach, lora_state
from training.paths import stage_dir

STEPS = 4
STRIDE = teacher.STEPS // STEPS
VALIDATION = 1  # shards that are not trained on


class Student(nn.Module):
    """A denoiser with low-rank additions, and its pipeline with the scheduler of few steps."""

    def __init__(self, call: ModuleType):
        super().__init__()
        pipe = call.pipeline()
        self.pipe, self.call, self.texts = pipe, call, {}
        self.denoiser = attach(getattr(pipe, call.COMPONENT), call.RANK)
        pipe.scheduler.set_timesteps(**few_steps(pipe))
        self.sigmas, self.times = pipe.scheduler.sigmas.clone(), pipe.scheduler.timesteps.clone()

    def encode(self, prompts: list[str]) -> tuple[torch.Tensor, ...]:
        """What the pipeline's text encoders say, each prompt computed once; one row per prompt."""
        for prompt in prompts:
            if prompt not in self.texts:
                with torch.no_grad():
                    self.texts[prompt] = self.call.encode(self.pipe, prompt)
        return tuple(torch.cat(parts) for parts in zip(*[self.texts[p] for p in prompts], strict=True))

    def step(self, latents: torch.Tensor, places: torch.Tensor, texts: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """One step from each sample's border to the next, as the pipeline's scheduler takes it; places (batch,)."""
        velocity = self.call.velocity(self.denoiser, latents, self.times[places], texts)
        lengths = self.sigmas[places + 1] - self.sigmas[places]
        return latents + lengths.view(-1, *[1] * (latents.ndim - 1)) * velocity

    def run(self, noise: torch.Tensor, prompts: list[str]) -> list[torch.Tensor]:
        """Latents after each of the steps."""
        texts, seen = self.encode(prompts), [noise]
        with parametrize.cached():
            for place in range(STEPS):
                seen.append(self.step(seen[-1], torch.full((len(noise),), place), texts))
        return seen[1:]


def few_steps(pipe: Any) -> dict[str, Any]:
    """The arguments FluxPipeline gives its scheduler for four steps; other schedulers need the number alone."""
    if hasattr(pipe, "transformer"):
        return dict(sigmas=[1 - place / STEPS for place in range(STEPS)])
    return dict(num_inference_steps=STEPS)


class Lessons:
    """The recorded runs: latents at the borders of the student's steps, (runs, 5, ...), and their prompts."""

    def __init__(self, stage: str, validation: bool = False):
        paths = teacher.shards(stage)
        paths = paths[:VALIDATION] if validation else paths[VALIDATION:]
        parts = [teacher.read_shard(path) for path in paths]
        self.borders = torch.cat([latents[:, ::STRIDE] for latents, _ in parts])
        self.prompts = [prompt for _, runs in parts for prompt, _ in runs]

    def batch(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, list[str]]:
        chosen = torch.randperm(len(self.prompts), generator=generator)[:count]
        return self.borders[chosen].float(), [self.prompts[index] for index in chosen]


@torch.no_grad()
def single_errors(student: Student, lessons: Lessons) -> torch.Tensor:
    """Mean squared error (4,) of each step by itself, from where the teacher stood."""
    texts, errors = student.encode(lessons.prompts), []
    with parametrize.cached():
        for place in range(STEPS):
            begin, end = lessons.borders[:, place].float(), lessons.borders[:, place + 1].float()
            reached = student.step(begin, torch.full((len(begin),), place), texts)
            errors.append((reached - end).square().mean())
    return torch.stack(errors)


class Objective:
    """The loss of a training step: single steps at first, whole runs from `rollouts_from` on.

    Errors count relative to those before training, so that every border has its say.
    """

    def __init__(self, student: Student, stage: str, single: int, whole: int, rollouts_from: int):
        self.student, self.lessons = student, Lessons(stage)
        self.single, self.whole, self.rollouts_from = single, whole, rollouts_from
        self.scale = single_errors(student, Lessons(stage, validation=True))

    def __call__(self, step: int, generator: torch.Generator) -> torch.Tensor:
        return self.single_steps(generator) if step < self.rollouts_from else self.whole_runs(generator)

    def single_steps(self, generator: torch.Generator) -> torch.Tensor:
        """As many samples from one border as from another."""
        borders, prompts = self.lessons.batch(self.single, generator)
        rows = torch.arange(self.single)
        places = rows % STEPS
        with parametrize.cached():
            reached = self.student.step(borders[rows, places], places, self.student.encode(prompts))
        errors = (reached - borders[rows, places + 1]).square().flatten(1).mean(1)
        return (errors / self.scale[places]).mean()

    def whole_runs(self, generator: torch.Generator) -> torch.Tensor:
        borders, prompts = self.lessons.batch(self.whole, generator)
        ends = self.student.run(borders[:, 0], prompts)
        errors = [(end - borders[:, place + 1]).square().mean() for place, end in enumerate(ends)]
        return (torch.stack(errors) / self.scale).mean()


@torch.no_grad()
def distances(student: Student, lessons: Lessons) -> torch.Tensor:
    """PSNR (runs,) of the student's images against the teacher's."""
    ends = student.run(lessons.borders[:, 0].float(), lessons.prompts)[-1]
    return psnr(*(student.call.decode(student.pipe, latents) for latents in (ends, lessons.borders[:, -1].float())))


def train(module: str) -> None:
    """Record what is missing, train, and note how near the student comes on runs that it did not learn from."""
    call = importlib.import_module(module)
    stage = call.RECIPE.stage
    teacher.record(call.NAME, stage, call.RUNS)
    student = Student(call)
    objective, held_out = Objective(student, stage, **call.OBJECTIVE), Lessons(stage, validation=True)

    def report(trainer: Trainer) -> None:
        near = distances(student, held_out)
        line = dict(step=trainer.step, psnr=[round(value, 2) for value in near.tolist()], mean=near.mean().item())
        with (trainer.folder / "held-out.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    Trainer(student, call.RECIPE).run(objective, report)


def write_lora(module: str) -> Path:
    """The averaged additions of a checkpoint as a LoRA file, and what to call it with, in the stage's folder."""
    call = importlib.import_module(module)
    student = Student(call)
    Trainer(student, call.RECIPE).use_average()
    folder = stage_dir(call.RECIPE.stage) / "lora"
    student.pipe.save_lora_weights(folder, **{f"{call.COMPONENT}_lora_layers": lora_state(student.denoiser)})
    (folder / "settings.json").write_text(json.dumps(call.SETTINGS, indent=2) + "\n")
    (folder / "scheduler.json").write_text(json.dumps(call.SCHEDULER, indent=2) + "\n")
    return folder


def load_student(module: str) -> Any:
    """The pipeline with the LoRA file of the stage's folder, as users will load it."""
    call = importlib.import_module(module)
    pipe = call.pipeline()
    pipe.load_lora_weights(stage_dir(call.RECIPE.stage) / "lora")
    return pipe
