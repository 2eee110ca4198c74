"""The trainer: the only package that imports torch."""
