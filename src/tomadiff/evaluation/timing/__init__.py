"""How long methods take."""
