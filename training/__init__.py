"""How the embedded emoji pipelines were made: data, recipe, checks.  Not part of the installed package."""
