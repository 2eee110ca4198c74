"""A plan at scale: hundreds of steps with noise, broken links and slow ranks, and weeks with failures."""
