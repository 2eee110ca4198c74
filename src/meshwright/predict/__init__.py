"""Prices the layouts of a job: columns for a search, a forecast for users."""
