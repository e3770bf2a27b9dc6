"""Looking at what merging does: pictures and, later, records, metrics and reports."""
