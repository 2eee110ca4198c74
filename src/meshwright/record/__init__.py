"""A run as a folder: its header, its plan, one JSON line per step and per event; the same for trained and simulated runs.

docs/records.md describes every file and field. Lines are appended completely and given to the operating system at once. So a killed process
loses nothing, and a reader sees complete lines, except for a last line that is being written.
"""
