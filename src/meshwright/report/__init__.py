"""Pages, plots and comparisons of plans and runs. This package reads files and values; it starts nothing and does not import torch."""
