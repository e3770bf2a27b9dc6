"""What property tests draw from: grids of every awkward size, regions, tokens."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from tomadiff import Grid, Stripes, Tiles, Whole
from tomadiff.merging.grid import Regions

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

sides = st.one_of(st.integers(1, 97), st.sampled_from([1, 2, 7, 13, 64, 89, 97]))
small_sides = st.integers(1, 14)


def grids(side: st.SearchStrategy[int] = sides) -> st.SearchStrategy[Grid]:
    return st.builds(Grid, side, side)


def videos() -> st.SearchStrategy[Grid]:
    return st.builds(Grid, small_sides, small_sides, st.integers(2, 9))


def regions() -> st.SearchStrategy[Regions]:
    return st.one_of(st.just(Whole()), local_regions())


def local_regions() -> st.SearchStrategy[Regions]:
    return st.one_of(
        st.builds(Tiles, st.integers(1, 12), frames=st.integers(1, 4)),
        st.builds(lambda count: Tiles(count=count), st.integers(1, 300)),
        st.builds(Stripes, st.integers(1, 100)),
        st.builds(lambda count: Stripes(count=count), st.integers(1, 50)),
    )


def random_tokens(grid: Grid, batch: int, channels: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """``(batch, N, channels)`` independent tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, grid.tokens, channels, generator=generator).to(dtype)


def clustered(clusters: int, per_cluster: int, channels: int, seed: int, spread: float = 0.05) -> tuple[Tensor, Tensor]:
    """``(clusters · per_cluster, channels)`` features around well-separated centres, shuffled, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.linalg.qr(torch.randn(channels, clusters, generator=generator)).Q.T
    labels = torch.arange(clusters).repeat_interleave(per_cluster)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    noise = spread * torch.randn(len(labels), channels, generator=generator)
    return centres[labels] + noise, labels
