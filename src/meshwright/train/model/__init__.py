"""The transformer, as if it were not split."""
