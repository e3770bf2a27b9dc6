"""Evaluation: images with and without a method, how near they are, and how long they take."""
