"""The kernels as torch's operators, and all of them together."""

import torch

from tomadiff import Grid, Tiles, ToMA, kernels

GRID, REGIONS = Grid(6, 7), Tiles(3)


def test_operators_keep_torchs_rules() -> None:
    tokens = torch.randn(2, GRID.tokens, 6)
    plan = ToMA.tile(0.5, regions=REGIONS, kernels="torch").plan(tokens, GRID)
    layout, merged = plan.layout, plan.merge(tokens)
    rows, real = layout.index, layout.mask
    starts = torch.arange(layout.regions + 1).expand(2, -1).contiguous() * 2  # two of every region
    checks = [
        (kernels.local_plan, (tokens, rows, real, None, 2, 4, 1e-3, 0.05)),
        (kernels.local_plan, (tokens, rows, real, None, 1, 4, 1e-3, None)),
        (kernels.local_plan, (tokens, rows, real, plan.local_index, 2, plan.per_region, 1e-3, 0.05)),
        (kernels.local_plan, (tokens, rows, real, plan.local_index, 2, plan.per_region, 1e-3, 0.05, starts)),
        (kernels.local_choice, (tokens, rows, real, 1)),
        (kernels.merge, (tokens, plan.merge_matrix, rows)),
        (kernels.merge, (tokens, plan.merge_matrix, rows, starts, 2 * layout.regions)),
        (kernels.unmerge_add, (merged, plan.unmerge_matrix, rows, real, GRID.tokens, tokens)),
    ]
    for operator, given in checks:
        torch.library.opcheck(operator, given, test_utils=("test_schema", "test_faketensor"))


def test_a_method_plans_the_same_with_kernels() -> None:
    tokens = torch.randn(2, GRID.tokens, 12)
    fast, slow = (ToMA.tile(0.5, regions=REGIONS, kernels=choice).plan(tokens, GRID) for choice in ("triton", "torch"))
    assert fast.fused
    assert torch.equal(fast.destinations, slow.destinations)
    torch.testing.assert_close(fast.coverage, slow.coverage)
    torch.testing.assert_close(fast.unmerge(fast.merge(tokens)), slow.unmerge(slow.merge(tokens)), rtol=1e-4, atol=1e-4)


def test_compiled_code_passes_through_in_one_graph() -> None:
    tokens = torch.randn(1, GRID.tokens, 6)
    plan = ToMA.tile(0.5, regions=REGIONS, kernels="triton").plan(tokens, GRID)

    def around(tokens: torch.Tensor) -> torch.Tensor:
        return plan.unmerge_add(plan.merge(tokens) * 2, tokens)

    compiled = torch.compile(around, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(tokens), around(tokens))
