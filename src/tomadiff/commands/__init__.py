"""The commands of ``tomadiff``, one file each; ``cli.py`` gives them their names."""
