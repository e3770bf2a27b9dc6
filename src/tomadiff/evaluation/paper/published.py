"""Figures that the ToMA paper publishes, to stand next to the measured ones; small, and with where each is found.

They are of other models on other machines (SDXL-base and Flux.1-dev at 1024², 50 and 35 steps, RTX 6000 Ada unless said
otherwise), so nothing here is compared number by number: what is checked are claims (``experiments.py``). Where a table
is missing, our source shows it as an image, and only what the text says about it is used.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "Lu, Zheng, Xia, Wang: ToMA, Token Merge with Attention (ICML 2025), arXiv 2509.10918, early version"


@dataclass(frozen=True)
class Published:
    """What the paper says about one thing.

    Attributes:
        what: the row or quantity.
        figure: as published.
        where: section or table.
    """

    what: str
    figure: str
    where: str


PUBLISHED: dict[int, tuple[Published, ...]] = {
    1: (
        Published("ToMeSD, time against no merging", "+34.4 % to +43.8 %", "section 5.1, table 1"),
        Published("ToMA's variants but tile, time against no merging", "−28.5 % to −0.7 %", "section 5.1, table 1"),
        Published("ToMA on SDXL-base, time against no merging", "−24 %", "abstract of the published version"),
    ),
    3: (Published("best number of tiles on 4096 tokens", "64 by DINO and MSE; 256 by CLIP and time", "section 5.2"),),
    4: (
        Published("merge of 4096 tokens, seconds", "ToMA 0.0403, ToMeSD 0.2048", "section 5.3, table 4"),
        Published("merge, ToMA faster by", "about 80 %", "section 5.3"),
        Published("unmerge, ToMA faster by", "72 % to 75 %", "section 5.3"),
    ),
    5: (Published("merge and unmerge of 1024 tokens, ToMA faster by", "about 80 %", "section 5.3, table 5"),),
    7: (Published("chosen schedule", "destinations every 10 steps, weights every 5, of 50", "appendix C.2"),),
    8: (Published("DINO distance to the unmerged image", "below 0.07", "abstract of the published version"),),
    10: (
        Published("Flux.1-dev unmerged: FID, CLIP, seconds", "31.56, 29.026, 21.03", "table 10"),
        Published("0.25: FID, CLIP, DINO, MSE, seconds", "30.80, 29.068, 0.043, 1340, 20.14", "table 10"),
        Published("0.50: FID, CLIP, DINO, MSE, seconds", "31.70, 29.091, 0.051, 1579, 18.58", "table 10"),
        Published("0.75: FID, CLIP, DINO, MSE, seconds", "33.39, 28.976, 0.064, 2041, 16.12", "table 10"),
    ),
}
"""By the number of the table."""
