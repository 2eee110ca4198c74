"""Measured runs, the constants fitted on them, and the errors that remain."""
