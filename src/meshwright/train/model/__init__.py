"""The transformer, unaware of being split."""
