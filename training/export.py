"""Write the averaged weights of a checkpoint into the package: python -m training.export emoji-sdxl emoji-flux.

Works from a running or stopped stage too; what is committed is decided by looking and by training.check.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch

from training import distil, flux, judge, sdxl
from training.paths import EMBEDDED, HERE, stage_dir
from training.samples import save_grid

STAGES = {"emoji-sdxl": "sdxl", "emoji-flux": "flux", "emoji-judge": "judge"}
FEW_STEP = {"emoji-sdxl-4step": "training.few_sdxl"}
MODELS = {"sdxl": sdxl.TextToLatent, "flux": flux.TextToTokens, "judge": judge.build}


def averaged(stage: str) -> torch.nn.Module:
    """The stage's model with the moving average of its weights, ready to draw."""
    state = torch.load(stage_dir(stage) / "checkpoint.pt", weights_only=True, mmap=True)
    model = MODELS[stage]()
    model.load_state_dict(state["model"] | state["average"])
    return model.eval()


def export_judge(folder: Path) -> None:
    averaged("judge").half().save_pretrained(folder)
    judge.processor().save_pretrained(folder)


def export_pipeline(name: str, folder: Path) -> None:
    """The diffusers folder in half precision, and what to call the pipeline with."""
    module = {"emoji-sdxl": sdxl, "emoji-flux": flux}[name]
    module.save(averaged(STAGES[name]), folder)
    (folder / "settings.json").write_text(json.dumps(module.SETTINGS, indent=2) + "\n")


def export_grid(name: str) -> None:
    """The sample grid of what was just exported, read back from the package."""
    from tomadiff import embedded

    (HERE / "samples").mkdir(exist_ok=True)
    save_grid(embedded.load(name), embedded.settings(name), HERE / "samples" / f"{name}.png")


def clean_configs(folder: Path) -> None:
    """Drop where a part was loaded from; have halves loaded as float32, which transformers must be told."""
    for path in folder.rglob("config.json"):
        config = json.loads(path.read_text())
        config.pop("_name_or_path", None)
        if "dtype" in config:
            config["dtype"] = "float32"
        path.write_text(json.dumps(config, indent=2) + "\n")


def export(name: str) -> None:
    folder = EMBEDDED / name
    shutil.rmtree(folder, ignore_errors=True)
    if name == "emoji-judge":
        export_judge(folder)
    elif name in FEW_STEP:
        shutil.copytree(distil.write_lora(FEW_STEP[name]), folder)
    else:
        export_pipeline(name, folder)
    clean_configs(folder)
    shutil.copy(HERE / "cards" / f"{name}.md", folder / "README.md")
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(0o644)  # safetensors writes files that only their owner can read
    size = sum(path.stat().st_size for path in files) / 1e6
    print(f"{name}: {size:.1f} MB in {folder}")
    if name != "emoji-judge":
        export_grid(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*STAGES, *FEW_STEP])
    for name in parser.parse_args().names:
        export(name)


if __name__ == "__main__":
    main()
