"""Settings that are checked, files that are read and written with care."""
