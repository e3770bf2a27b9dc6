"""The distillation into four steps: what is recorded, what the student computes, what its LoRA file does."""

import importlib
from itertools import islice

import pytest
import torch

from benchmarks.fidelity import pairs_of
from tomadiff import embedded
from training import distil, few_check, lowrank, objects, teacher

PROMPTS = ["a fox on a blue background", "a pig on a green background"]


@pytest.fixture(params=["sdxl", "flux"])
def call(request):
    return importlib.import_module(f"training.few_{request.param}")


@torch.no_grad()
def disturb(student):
    """As if trained: additions that are not zero, on the grid that files have."""
    torch.manual_seed(0)
    for name, parameter in student.named_parameters():
        if name.endswith("lora_B"):
            parameter.normal_(std=0.01)
        if "lora_" in name:
            parameter.copy_(lowrank.on_grid(parameter))


def test_seeds_and_held_out_pairs_are_not_trained_on():
    runs = list(islice(teacher.training_runs(), 500))
    hidden = {objects.caption(*pair, n) for pair in objects.held_out_pairs() for n in range(len(objects.PHRASINGS))}
    assert not hidden & {prompt for prompt, _ in runs}
    assert len({seed for _, seed in runs}) == 500
    assert not {seed for _, seed in runs} & set(range(10_000))


def test_the_check_is_shown_on_the_pairs_of_the_benchmark():
    assert few_check.shown_pairs() == [(prompt.text, seed) for prompt, seed in pairs_of(100)]


def test_a_recorded_run_is_the_pipeline_s_own(call, tmp_path):
    pipe, settings = embedded.load(call.NAME), embedded.settings(call.NAME) | dict(num_inference_steps=1)
    runs = [(PROMPTS[0], 3), (PROMPTS[1], 4)]
    latents = teacher.trajectory(pipe, settings, runs)
    generators = [torch.Generator().manual_seed(seed) for _, seed in runs]
    assert torch.equal(latents[:, -1], pipe(PROMPTS, generator=generators, output_type="latent", **settings).images)
    teacher.write_shard(tmp_path / "0.safetensors", latents, runs)
    read, again = teacher.read_shard(tmp_path / "0.safetensors")
    assert again == runs
    assert torch.equal(read, latents.half())


def test_the_teacher_s_path_is_read_off_between_its_steps():
    known, wanted = torch.tensor([1.0, 0.8, 0.4, 0.0]), torch.tensor([1.1, 0.8, 0.6, 0.1, 0.0])
    latents = torch.tensor([10.0, 8.0, 4.0, 0.0]).view(1, -1, 1, 1)  # straight, so that the line is the path
    found = distil.interpolate(latents, known, wanted)
    assert torch.allclose(found.flatten().float(), torch.tensor([10.0, 8.0, 6.0, 1.0, 0.0]), atol=1e-2)


def test_borders_begin_with_the_noise_and_end_with_the_teacher_s_image(call):
    student, known = distil.Student(call), distil.teacher_sigmas(call.NAME)
    assert len(known) == teacher.STEPS + 1
    latents = torch.arange(float(len(known))).view(1, -1, 1, 1)
    borders = distil.interpolate(latents, known, student.sigmas).flatten()
    assert borders[0] < 1e-3  # schedulers stop short of infinite noise
    assert borders[-1] == teacher.STEPS
    assert (borders.diff() > 0).all()


@pytest.mark.slow
def test_a_lora_file_does_what_the_student_does_and_leaves_no_trace(call, tmp_path):
    student = distil.Student(call)
    disturb(student)
    noise = teacher.noise_of([0], packed=call.COMPONENT == "transformer")
    with torch.no_grad():
        wanted = student.run(noise, PROMPTS[:1])[-1]
    student.pipe.save_lora_weights(tmp_path, **{f"{call.COMPONENT}_lora_layers": lowrank.lora_state(student.denoiser)})

    pipe = embedded.load(call.NAME)
    before = {name: weight.clone() for name, weight in getattr(pipe, call.COMPONENT).state_dict().items()}
    pipe.scheduler = call.pipeline().scheduler
    given = dict(latents=noise, output_type="latent", **call.SETTINGS)
    plain = pipe(PROMPTS[:1], **given).images
    pipe.load_lora_weights(tmp_path)
    found = pipe(PROMPTS[:1], **given).images
    assert torch.allclose(found, wanted, atol=1e-3)
    assert not torch.allclose(found, plain, atol=1e-2)

    pipe.fuse_lora()
    pipe.unfuse_lora()
    pipe.unload_lora_weights()
    after = getattr(pipe, call.COMPONENT).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], weight) for name, weight in after.items())


@pytest.mark.slow
def test_the_loss_trains_the_additions_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("TOMADIFF_TRAINING_DIR", str(tmp_path))
    folder = teacher.stage_dir("few-sdxl") / "runs"
    folder.mkdir()
    for number in range(distil.VALIDATION + 1):  # the first ones are held out
        latents = torch.randn(1, teacher.STEPS + 1, 4, 64, 64, generator=torch.Generator().manual_seed(number))
        teacher.write_shard(folder / f"{number}.safetensors", latents, [(PROMPTS[0], number)])
    call = importlib.import_module("training.few_sdxl")
    student = distil.Student(call)
    lessons, held_out = (distil.Lessons(call, student.sigmas, validation=held) for held in (False, True))
    assert (len(lessons.prompts), len(held_out.prompts)) == (1, distil.VALIDATION)
    distil.Objective(student, lessons, batch=1)(0, torch.Generator().manual_seed(0)).backward()
    trained = {name: parameter.grad for name, parameter in student.named_parameters() if parameter.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)
    assert any(gradient.abs().max() > 0 for gradient in trained.values())
