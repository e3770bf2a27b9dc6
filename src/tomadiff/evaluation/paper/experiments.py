"""The paper's experiments as data: what each table compares, what is claimed about it, and which figures go with it.

Everything is scaled to the model at hand by keeping what a tile holds: the paper's 256 tiles on 4096 tokens are tiles
of 4×4, and 64 tiles are 8×8, on every grid. Rows are named ``paper-…`` in the catalogue, with the paper's settings
written out; ``toma-default`` next to them is this library's own default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from tomadiff.errors import SettingError
from tomadiff.evaluation.paper.claims import Alike, Below, Better, Check, Claim, Faster, NearlyAsFast
from tomadiff.evaluation.paper.experiment import Experiment, Grid, Seen
from tomadiff.evaluation.runs.variants import FULL, Variant, variants

RATIOS = (0.25, 0.5, 0.75)
HALF = (0.5,)
MOST = (0.75,)
DRIFT = 0.07  # the paper's bound on the DINO distance


# ---------------------------------------------------------------------------------------------- short ways to say it
def _every(*methods: str, ratios: Sequence[float] = RATIOS) -> tuple[Variant, ...]:
    return tuple(variants(methods, ratios))


def _at(method: str, ratio: float) -> Variant:
    return Variant() if method == FULL else Variant.named(method, ratio)


def _better(
    one: str, others: Sequence[str], ratios: Sequence[float] = HALF, kinds: Sequence[str] = ("mse", "dino")
) -> tuple[Check, ...]:
    pairs = [(_at(one, ratio), _at(other, ratio)) for ratio in ratios for other in others]
    return tuple(Better(*pair, kind) for pair in pairs for kind in kinds)


def _alike(one: str, other: str, kinds: Sequence[str], within: float = 0.1) -> tuple[Check, ...]:
    return tuple(Alike(_at(one, 0.5), _at(other, 0.5), kind, within) for kind in kinds)


def _faster(ones: Sequence[str], others: Sequence[str], ratios: Sequence[float] = RATIOS) -> tuple[Check, ...]:
    return tuple(Faster(_at(one, ratio), _at(other, ratio)) for one in ones for other in others for ratio in ratios)


# ---------------------------------------------------------------------------------------------- variants and ratios
_STILL_QUICK = ("paper-whole", "paper-stripe-whole", "paper-stripe", "paper-once", "paper-once-stripe")
_VARIANTS = (*_STILL_QUICK, "paper-tile")
_MAIN = ("paper-whole", "paper-stripe-whole", "paper-stripe", "paper-tile")
_ALL_OPS = (
    "ToMeSD and ToFu merge around every op at every level, for their own defaults merge far less. ToMA chooses in "
    "tiles, as in section 5.2.1 of the paper; ToMA of section 5.1 chooses in stripes. Both attend over the whole grid."
)

TIME = Experiment(
    1,
    "how long the variants take",
    _every(*_VARIANTS, "tomesd-all", "bound"),
    (
        Claim("ToMeSD takes longer than no merging, at every ratio", _faster([FULL], ["tomesd-all"])),
        Claim("every variant of ToMA but tile takes less time than no merging", _faster(_STILL_QUICK, [FULL])),
        Claim("every variant of ToMA but tile takes less time than ToMeSD", _faster(_STILL_QUICK, ["tomesd-all"])),
        Claim(
            "ToMA* and stripe come near the speed limit (here: within 10 %)",
            tuple(
                NearlyAsFast(_at(one, ratio), _at("bound", ratio), 0.1)
                for one in ("paper-stripe", "paper-once-stripe")
                for ratio in RATIOS
            ),
        ),
    ),
    _ALL_OPS,
    figures=(
        Grid(1, "variants of ToMA", _every("paper-stripe", "paper-whole", "paper-tile", "paper-once", ratios=HALF)[1:]),
        Grid(
            6,
            "the original and variants",
            _every("paper-stripe", "paper-once", "paper-tile", "paper-whole", ratios=HALF),
        ),
    ),
)

QUALITY = Experiment(
    8,
    "what the variants do to images",
    _every(*_VARIANTS, "tomesd-all", "toma-default"),
    (
        Claim(
            "of the variants, tile gives the images nearest to the original",
            _better("paper-tile", _MAIN[:-1], RATIOS),
        ),
        Claim("tile takes more time than stripe, for it reorders tokens", _faster(["paper-stripe"], ["paper-tile"])),
        Claim(
            f"the DINO distance to the original stays below {DRIFT} with half of the tokens",
            tuple(Below(_at(name, 0.5), "dino", DRIFT) for name in _MAIN),
        ),
        Claim(
            "with half of the tokens, images fit their prompts as well as the original's (here: CLIP within 2 %)",
            tuple(check for name in _MAIN for check in _alike(name, FULL, ["clip"], 0.02)),
        ),
        Claim(
            "the default is nearer to the original than the paper's variants",
            _better("toma-default", _MAIN),
            about_default=True,
        ),
    ),
    f"{_ALL_OPS} The paper generates GEMRec and ImageNet-1k prompts, and times three GPUs.",
    curves=True,
)

BASELINES = Experiment(
    9,
    "ToMA and the baselines",
    _every("paper-whole", "tomesd-all", "tofu-all", "todo", "toma-default"),
    (
        Claim(
            "ToMA is faster than ToMeSD, ToFu and ToDo",
            _faster(["paper-whole"], ["tomesd-all", "tofu-all"]) + _faster(["paper-whole"], ["todo"], MOST),
        ),
        Claim(
            "its images are nearer to the original than those of ToFu and ToDo",
            _better("paper-whole", ["tofu-all"], RATIOS) + _better("paper-whole", ["todo"], MOST),
        ),
        Claim(
            "the default is faster than ToMeSD and ToFu",
            _faster(["toma-default"], ["tomesd-all", "tofu-all"]),
            about_default=True,
        ),
        Claim(
            "the default's images are nearer to the original than those of ToMeSD and ToFu",
            _better("toma-default", ["tomesd-all", "tofu-all"], RATIOS),
            about_default=True,
        ),
    ),
    f"{_ALL_OPS} ToDo has a ratio of its own, 0.75, at the finest level.",
    figures=(
        Grid(
            7,
            "the original, ToMA, ToDo and ToMeSD",
            (_at(FULL, 0.0), _at("paper-whole", 0.5), _at("todo", 0.75), _at("tomesd-all", 0.5)),
        ),
    ),
    curves=True,
)

# ---------------------------------------------------------------------------------------------- ablations
SELECTION = Experiment(
    2,
    "how destinations are chosen",
    _every(
        "paper-whole",
        "paper-stripe-whole",
        "paper-global",
        "paper-random",
        "paper-strided",
        "paper-kmeans",
        ratios=HALF,
    ),
    (
        Claim(
            "facility location beats random and strided destinations",
            _better("paper-whole", ["paper-random", "paper-strided"]),
        ),
        Claim(
            "choosing by tile scores best by DINO and CLIP",
            _better("paper-whole", ["paper-stripe-whole", "paper-global"], kinds=("dino", "clip")),
        ),
    ),
    "Tokens merge over the whole grid. ToMA of section 5.1 chooses in stripes, the next row over the whole grid, all "
    "others in tiles of 4×4; k-means is our addition.",
    seen=(Seen(3, "hidden_states"),),
)

TILES = Experiment(
    3,
    "how large tiles should be",
    _every("paper-tiles-2", "paper-whole", "paper-tiles-8", "paper-tiles-16", ratios=HALF),
    (
        Claim(
            "64 tiles on 4096 tokens (here: 8×8) score best by DINO and MSE",
            _better("paper-tiles-8", ["paper-tiles-2", "paper-whole", "paper-tiles-16"]),
        ),
        Claim(
            "256 tiles (here: 4×4) are about as good (here: within 10 %)",
            _alike("paper-whole", "paper-tiles-8", ["mse", "dino"]),
        ),
        Claim("256 tiles (here: 4×4) take less time than 64", _faster(["paper-whole"], ["paper-tiles-8"], HALF)),
    ),
    "Tokens merge over the whole grid; destinations are renewed every 10 steps, weights every 5.",
)

UNMERGE = Experiment(
    6,
    "transpose or pseudo-inverse",
    _every("paper-whole", "paper-pinv", ratios=HALF),
    (
        Claim(
            "images are about as good with the transpose (here: within 10 %)",
            _alike("paper-whole", "paper-pinv", ["mse", "dino", "clip"]),
        ),
        Claim("the transpose takes less time", _faster(["paper-whole"], ["paper-pinv"], HALF)),
    ),
    "Weights, and the pseudo-inverse with them, are renewed every 5 steps.",
)

SCHEDULES = Experiment(
    7,
    "how long plans are kept",
    _every("paper-every-1", "paper-every-5", "paper-tile", "paper-every-10", ratios=HALF),
    (
        Claim(
            "renewing all at every step scores better than every 10 steps", _better("paper-every-1", ["paper-every-10"])
        ),
        Claim(
            "destinations every 10 steps and weights every 5 are about as good as every step (here: within 10 %)",
            _alike("paper-tile", "paper-every-1", ["mse", "dino", "clip"]),
        ),
        Claim("the same take less time than every step", _faster(["paper-tile"], ["paper-every-1"], HALF)),
    ),
    "Tokens merge in tiles of 4×4. Intervals are the paper's, in steps, and so is the number of steps, 50.",
    steps=50,
    seen=(Seen(4, "overlap"),),
)

# ---------------------------------------------------------------------------------------------- transformers
_RISING = _every("paper-tile")
TRANSFORMERS = Experiment(
    10,
    "diffusion transformers",
    _every("paper-tile", "toma-default"),
    (
        Claim(
            f"the DINO distance to the original stays below {DRIFT} at every ratio",
            tuple(Below(variant, "dino", DRIFT) for variant in _RISING[1:]),
        ),
        Claim(
            "images fit their prompts as well as the original's (here: CLIP within 2 %)",
            tuple(Alike(variant, Variant(), "clip", 0.02) for variant in _RISING[1:]),
        ),
        Claim(
            "the more merges, the less time it takes",
            tuple(Faster(more, less) for less, more in pairwise(_RISING)),
        ),
        Claim(
            "the more merges, the further images are from the original",
            tuple(Better(less, more, "mse") for less, more in pairwise(_RISING[1:])),
        ),
    ),
    "The first blocks stay unmerged: 10 of Flux's 57, the same share of other depths.",
    kind="transformer",
    figures=(Grid(10, "the original and ToMA", _RISING),),
    seen=(Seen(9, "hidden_states"),),
)

EXPERIMENTS = (TIME, SELECTION, TILES, UNMERGE, SCHEDULES, QUALITY, BASELINES, TRANSFORMERS)
"""By the number of their table; 4 and 5 need no model, and are in ``merge_speed.py``."""

MERGE_SPEED = {4: 4096, 5: 1024}
"""How many tokens the tables that time merging and unmerging alone are about."""

TABLES = tuple(range(1, 11))


def tables_named(text: str | None) -> tuple[int, ...]:
    """``"2,6"`` → (2, 6); ``None`` means all of them."""
    if text is None:
        return TABLES
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not all(name.isdecimal() and int(name) in TABLES for name in names):
        raise SettingError(f"tables={text!r} is not possible; give numbers from 1 to 10 such as 2,6.")
    return tuple(sorted({int(name) for name in names}))


def experiments_of(tables: Iterable[int], kind: str | None = None) -> list[Experiment]:
    """Those of a table, about any kind of model by default."""
    wanted = set(tables)
    return [one for one in EXPERIMENTS if one.table in wanted and kind in (None, one.kind)]
