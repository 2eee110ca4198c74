"""Simulates a plan at full scale: hundreds of steps with noise, broken links and slow ranks, or weeks with failures."""
