"""Denoising steps: which one it is, what is due at it, and which are not computed at all."""
