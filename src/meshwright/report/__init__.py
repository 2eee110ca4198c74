"""Pages, plots and comparisons of plans and runs. Reads files and values; runs nothing, and never sees torch."""
