"""Find settings for a model."""
