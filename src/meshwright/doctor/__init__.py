"""Whether nodes are fit for a run: what each one has and how fast it is, against what the plan's cluster should have, in under a minute."""
