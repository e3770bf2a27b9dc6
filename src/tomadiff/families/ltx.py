"""LTX-Video (0.9): one grid of frames × height × width, conditions of other frames before it."""

from __future__ import annotations

from torch import Tensor, nn

from tomadiff.families.base import Block, Family, ModelCall, Op, Rotary, Rows, TokenLayout, stacks_named
from tomadiff.merging.grid import Grid

ROTARY = Rotary("image_rotary_emb", axis=1)


def token_layout(_: nn.Module, call: ModelCall) -> TokenLayout | None:
    """From ``num_frames``, ``height`` and ``width``, or from ``video_coords`` ``(B, 3, N)``."""
    grid, coords = named_grid(call), call["video_coords"]
    if grid is None and isinstance(coords, Tensor):
        grid = _last_grid(*coords[0])
    return None if grid is None else TokenLayout.flat(grid, head=call.image.shape[1] - grid.tokens)


def named_grid(call: ModelCall) -> Grid | None:
    """As ``num_frames``, ``height`` and ``width`` say in latents, if they are given."""
    sizes = [call[name] for name in ("height", "width", "num_frames")]
    return Grid(*sizes) if all(sizes) else None


def _last_grid(times: Tensor, rows: Tensor, columns: Tensor) -> Grid | None:
    """The last run of whole frames whose times increase; conditions before it are of later frames than its first."""
    area = _equal_at_end(times)
    width = _equal_at_end(rows[-area:])
    if len(times) % area or area % width:
        return None
    times, rows, columns = (one.view(-1, area) for one in (times, rows, columns))
    alike = ((rows == rows[-1]) & (columns == columns[-1]) & (times == times[:, :1])).all(1)
    alike[1:] &= times[1:, 0] > times[:-1, 0]  # a frame that does not follow the one before it begins the grid
    breaks = (~alike).nonzero().flatten().tolist()
    return Grid(area // width, width, len(times) - (breaks[-1] if breaks else 0))


def _equal_at_end(values: Tensor) -> int:
    """How many values at the end are equal."""
    others = (values != values[-1]).nonzero().flatten()
    return len(values) - (int(others[-1]) + 1 if len(others) else 0)


FAMILY = Family(
    name="ltx",
    title="LTX-Video",
    models=("LTXVideoTransformer3DModel",),
    blocks=(
        Block(
            "LTXVideoTransformerBlock",
            ops=(Op("attn1", "attention", ROTARY), Op("attn2", "cross_attention"), Op("ff", "feed_forward")),
            rotary=ROTARY,
            rows=(Rows("temb", axis=1, dims=3),),
        ),
    ),
    stacks=stacks_named("transformer_blocks"),
    token_layout=token_layout,
    pipelines=("LTXPipeline", "LTXImageToVideoPipeline", "LTXConditionPipeline"),
    reads=("video_coords",),
    note="tokens of conditions for other frames stay unmerged, since they lie outside the grid",
)
