"""Teach a LoRA to reach in four steps what the teacher reaches in twenty, from the teacher's recorded runs.

Whole runs of four steps from noise, with gradients through all of them: what counts is where a run ends. The student's
steps need not end where the teacher's do; where the teacher stood in between is interpolated.
"""

import importlib
import json
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from tomadiff import embedded
from training import teacher
from training.autoencoder import psnr
from training.loop import Trainer
from training.lowrank import attach, lora_state
from training.paths import stage_dir

STEPS = 4
VALIDATION = 2  # shards that are not trained on
BORDER_WEIGHT = 0.1  # of where each step ends, in the loss; the image counts as 1


class Student(nn.Module):
    """A denoiser with low-rank additions, and its pipeline with the scheduler of few steps."""

    def __init__(self, call: ModuleType):
        super().__init__()
        pipe = call.pipeline()
        self.pipe, self.call, self.texts = pipe, call, {}
        self.denoiser = attach(getattr(pipe, call.COMPONENT), call.RANK)
        pipe.vae.requires_grad_(False)
        set_steps(pipe, STEPS)
        self.sigmas = pipe.scheduler.sigmas.clone()
        self.bfloat16 = False

    def encode(self, prompts: list[str]) -> tuple[torch.Tensor, ...]:
        """What the pipeline's text encoders say, each prompt computed once; one row per prompt."""
        for prompt in prompts:
            if prompt not in self.texts:
                with torch.no_grad():
                    self.texts[prompt] = self.call.encode(self.pipe, prompt)
        return tuple(torch.cat(parts) for parts in zip(*[self.texts[p] for p in prompts], strict=True))

    def run(self, noise: torch.Tensor, prompts: list[str]) -> list[torch.Tensor]:
        """Latents after each of the steps, as the pipeline and its scheduler take them."""
        texts, seen, scheduler = self.encode(prompts), [noise], self.pipe.scheduler
        set_steps(self.pipe, STEPS)
        with parametrize.cached():
            for time in scheduler.timesteps:
                with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
                    velocity = self.call.velocity(self.denoiser, seen[-1], time.expand(len(noise)), texts)
                seen.append(scheduler.step(velocity.float(), time, seen[-1], return_dict=False)[0])
        return seen[1:]


def set_steps(pipe: Any, steps: int) -> None:
    """Tell the scheduler as the pipeline does: FluxPipeline gives noise levels to schedulers that have none of flow."""
    if getattr(pipe.scheduler.config, "use_flow_sigmas", False):
        pipe.scheduler.set_timesteps(steps)
    else:
        pipe.scheduler.set_timesteps(sigmas=[1 - place / steps for place in range(steps)])


def teacher_sigmas(name: str) -> torch.Tensor:
    """Noise levels (21,) between the teacher's steps."""
    pipe = embedded.load(name)
    set_steps(pipe, teacher.STEPS)
    return pipe.scheduler.sigmas.clone()


def interpolate(latents: torch.Tensor, known: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Latents (runs, 21, ...) at noise levels `known`, which fall, to latents (runs, 5, ...) at `wanted`.

    Linear between two: the teacher's path is nearly straight from one of its steps to the next.
    """
    places = torch.searchsorted(-known, -wanted).clamp(1, len(known) - 1)
    share = ((known[places - 1] - wanted) / (known[places - 1] - known[places])).clamp(0, 1)
    before, after = latents[:, places - 1].float(), latents[:, places].float()
    return before.lerp(after, share.view(1, -1, *[1] * (latents.ndim - 2))).half()


class Lessons:
    """The recorded runs: latents at the borders of the student's steps, (runs, 5, ...), and their prompts.

    Runs that another process records meanwhile are learnt from as they come.
    """

    def __init__(self, call: ModuleType, sigmas: torch.Tensor, validation: bool = False):
        self.stage, self.sigmas, self.known = call.RECIPE.stage, sigmas, teacher_sigmas(call.NAME)
        self.wanted = slice(VALIDATION) if validation else slice(VALIDATION, None)
        self.parts: list[torch.Tensor] = []
        self.prompts: list[str] = []
        self.update()

    def update(self) -> None:
        """Read what is new."""
        for path in teacher.shards(self.stage)[self.wanted][len(self.parts) :]:
            latents, runs = teacher.read_shard(path)
            self.parts.append(interpolate(latents, self.known, self.sigmas))
            self.prompts += [prompt for prompt, _ in runs]

    @property
    def borders(self) -> torch.Tensor:
        return torch.cat(self.parts)

    def batch(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, list[str]]:
        self.update()
        chosen = torch.randperm(len(self.prompts), generator=generator)[:count].tolist()
        borders = torch.stack([self.parts[index // teacher.SHARD][index % teacher.SHARD] for index in chosen])
        return borders.float(), [self.prompts[index] for index in chosen]


class Objective:
    """The loss of a training step: the images' PSNR to the teacher's, and a little how far runs are from its path.

    Logarithms of errors, as PSNR has them: a run that took another way than the teacher's cannot be saved, and must not
    drown those that can. What is measured in pixels counts most, since that is what is wanted.
    """

    def __init__(self, student: Student, lessons: Lessons, batch: int):
        self.student, self.lessons, self.count = student, lessons, batch

    def __call__(self, _: int, generator: torch.Generator) -> torch.Tensor:
        borders, prompts = self.lessons.batch(self.count, generator)
        self.student.bfloat16 = True  # a third faster; what is measured runs in float32
        ends = self.student.run(borders[:, 0], prompts)
        self.student.bfloat16 = False
        path = [BORDER_WEIGHT * log_error(end, borders[:, place + 1]) for place, end in enumerate(ends)]
        decode = partial(self.student.call.decode, self.student.pipe)
        with torch.no_grad():
            wanted = decode(borders[:, -1])
        return (torch.stack(path).sum(0) + log_error(decode(ends[-1]), wanted)).mean()


def log_error(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Logarithm of the mean squared error of every run."""
    return ((found - wanted).square().flatten(1).mean(1) + 1e-6).log()


@torch.no_grad()
def distances(student: Student, lessons: Lessons) -> torch.Tensor:
    """PSNR (runs,) of the student's images against the teacher's."""
    ends = student.run(lessons.borders[:, 0].float(), lessons.prompts)[-1]
    return psnr(*(student.call.decode(student.pipe, latents) for latents in (ends, lessons.borders[:, -1].float())))


def train(module: str) -> None:
    """Record what is missing, train, and note how near the student comes on runs that it did not learn from."""
    call = importlib.import_module(module)
    stage = call.RECIPE.stage
    teacher.record(call.NAME, stage, call.RUNS, call.BFLOAT16)
    student = Student(call)
    held_out = Lessons(call, student.sigmas, validation=True)
    objective = Objective(student, Lessons(call, student.sigmas), **call.OBJECTIVE)

    def report(trainer: Trainer) -> None:
        near = distances(student, held_out)
        line = dict(step=trainer.step, mean=round(near.mean().item(), 2), median=round(near.median().item(), 2))
        line |= dict(psnr=[round(value, 2) for value in near.tolist()])
        with (trainer.folder / "held-out.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    Trainer(student, call.RECIPE).run(objective, report)


def write_lora(module: str) -> Path:
    """The averaged additions of a checkpoint as a LoRA file, its scheduler, and what to call it with."""
    call = importlib.import_module(module)
    student = Student(call)
    Trainer(student, call.RECIPE).use_average()
    folder = stage_dir(call.RECIPE.stage) / "lora"
    student.pipe.save_lora_weights(folder, **{f"{call.COMPONENT}_lora_layers": lora_state(student.denoiser)})
    student.pipe.scheduler.save_config(folder)
    (folder / "settings.json").write_text(json.dumps(call.SETTINGS, indent=2) + "\n")
    return folder


def load_student(module: str) -> Any:
    """The embedded pipeline with the LoRA file of the stage's folder, as users will load it."""
    call = importlib.import_module(module)
    pipe = embedded.load(call.NAME)
    pipe.load_lora_weights(stage_dir(call.RECIPE.stage) / "lora")
    pipe.scheduler = call.pipeline().scheduler
    return pipe
