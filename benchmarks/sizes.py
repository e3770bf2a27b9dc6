"""How the benefit grows with the number of tokens: python -m benchmarks.sizes --pairs 24.

The embedded pipelines learnt 128². Here they generate larger images too, in full and with each way, and the same
prompts and seeds. Appends one line per image to `results/sizes.csv`; what is in the file is not generated again.
`fits` says whether emoji-judge ranks the image's prompt first among all of the embedded list. `--table` prints what the
file holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from statistics import fmean, median

import torch
from PIL import Image
from rich.progress import track

from benchmarks.fidelity import pairs_of, pairs_parser, trials_of
from tomadiff import ToMA, ToMeSD
from tomadiff.evaluation.metrics.distances import pixel_metrics
from tomadiff.evaluation.metrics.features import image_features, text_features, to_pixels
from tomadiff.evaluation.metrics.networks import Clip
from tomadiff.evaluation.runs import rows
from tomadiff.evaluation.runs.prompts import emoji_prompts
from tomadiff.evaluation.runs.variants import FULL, Variant
from tomadiff.evaluation.tune.trials import Pair
from tomadiff.steps.recommend import Recommended

FILE = "sizes.csv"
MODELS = ("emoji-sdxl", "emoji-flux")
SIZES = (128, 256)
EVERYWHERE = {"levels": None, "merge_cross_attention": True, "merge_feed_forward": True}
WAYS = {
    FULL: Variant(),
    "recommended": Variant("recommended", forecast=Recommended()),
    **{f"toma {ratio:g}": Variant.of("toma", ToMA(ratio)) for ratio in (0.25, 0.5, 0.75)},
    **{f"tomesd-all {ratio:g}": Variant.of("tomesd-all", ToMeSD(ratio, **EVERYWHERE)) for ratio in (0.5,)},
}


class Task:
    """Images of one pipeline and size."""

    def __init__(self, model: str, size: int, steps: int) -> None:
        self.model, self.size, self.steps = model, size, steps
        self.trials = trials_of(model, steps)
        self.trials.call = {**self.trials.call, "height": size, "width": size}
        self.judge = Clip.open_judge()
        self.prompts = [prompt.text for prompt in emoji_prompts()]

    @cached_property
    def meanings(self) -> torch.Tensor:
        """What the judge makes of every prompt."""
        return torch.nn.functional.normalize(text_features(self.judge, self.prompts), dim=-1)

    def run(self, path: Path, pairs: Sequence[Pair]) -> None:
        """Generate what is missing."""
        about = {"model": self.model, "steps": self.steps, "size": self.size}
        done = {tuple(row.values())[:6] for row in rows.read(path)}
        costs: dict[str, float] = {}
        for pair in track(pairs, description=f"{self.model}, {self.size}²"):
            for name, way in WAYS.items():
                key = {**about, "way": name, "prompt": pair[0].text, "seed": pair[1]}
                if tuple(map(str, key.values())) in done:
                    continue
                found = self.compared(pair, way)
                if name not in costs:
                    costs[name] = self.trials.cost(pair, way) / (found["computed"] if way.forecast else 1.0)
                cost = costs[name] * (found["computed"] if way.forecast else 1.0)
                rows.append(path, {**key, "cost": f"{cost:.4f}", **{one: f"{found[one]:.5g}" for one in found}})

    def compared(self, pair: Pair, way: Variant) -> dict[str, float]:
        """How far an image is from the full one, and whether it shows its prompt."""
        (wanted,) = self.trials.unmerged([pair])
        (image,) = self.trials.generate([pair], way) if way.name != FULL else (wanted,)
        near = pixel_metrics(to_pixels([image]), to_pixels([wanted]))
        figures = {name: float(near[name][0]) for name in ("mse", "psnr", "ssim")}
        computed = self.trials.computed if way.forecast is not None else 1.0
        return {"computed": computed, **figures, "fits": float(self.fits(image, pair[0].text))}

    def fits(self, image: Image.Image, prompt: str) -> bool:
        """Whether the judge ranks the prompt first."""
        seen = image_features(self.judge, [image])
        return self.prompts[int((self.meanings @ seen[0]).argmax())] == prompt


def table(path: Path) -> Iterator[str]:
    """One line of Markdown for each way."""
    found: dict[tuple[str, int, str], list[rows.Row]] = {}
    for row in rows.read(path):
        found.setdefault((row["model"], int(row["size"]), row["way"]), []).append(row)
    yield "| model | size | way | FLOPs | PSNR, median | MSE, mean | prompt first among 96 | images |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|"
    for (model, size, way), own in sorted(found.items(), key=lambda one: (MODELS.index(one[0][0]), *one[0][1:])):
        cost, mse = (fmean(float(row[name]) for row in own) for name in ("cost", "mse"))
        psnr = median(float(row["psnr"]) for row in own)
        fits = fmean(float(row["fits"]) for row in own)
        near = "– | –" if way == FULL else f"{psnr:.1f} dB | {mse:.1f}"
        yield f"| {model} | {size}² | {way} | {cost:.3f} | {near} | {fits:.0%} | {len(own)} |"


def main(given: Sequence[str] | None = None) -> None:
    """Generate, and print the table."""
    parser = pairs_parser(__doc__, 24, shows_table=True)
    parser.add_argument("models", nargs="*", choices=[*MODELS, list(MODELS)], default=list(MODELS))
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args(given)
    path = arguments.results / FILE
    if not arguments.table:
        torch.set_num_threads(arguments.threads)
        for model in arguments.models:
            for size in arguments.sizes:
                Task(model, size, arguments.steps).run(path, pairs_of(arguments.pairs))
    print("\n".join(table(path)))


if __name__ == "__main__":
    main()
