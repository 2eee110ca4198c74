"""Detects slow ranks, hangs and bad gradients, and stops a run."""
