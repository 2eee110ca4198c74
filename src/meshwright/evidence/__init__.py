"""How right we are: measured runs, the constants fitted on them, and the errors that remain."""
