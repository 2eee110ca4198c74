"""The plan run for real: the only package that imports torch."""
