"""Short scripts, one per family of models; each runs offline with ``--tiny``."""
