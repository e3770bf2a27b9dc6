"""The kernels themselves, written in Triton; importing any of these files imports Triton."""
