"""How near images are, and how sure that is."""
