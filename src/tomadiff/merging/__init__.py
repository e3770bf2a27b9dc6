"""The method as tensors: grids, selection, weights, plans, unmerging. It needs torch alone."""
