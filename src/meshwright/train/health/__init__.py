"""Whether ranks move, who is slow, and what stops a run."""
