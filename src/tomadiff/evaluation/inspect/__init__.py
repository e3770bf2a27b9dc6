"""Look at what merging does inside one image."""
