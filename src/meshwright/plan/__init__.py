"""Finds the best layout for a job and makes a plan of it."""
