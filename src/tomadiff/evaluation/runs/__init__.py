"""Generate images and keep them: models, prompts, variants, tasks, and the folder of a run."""
