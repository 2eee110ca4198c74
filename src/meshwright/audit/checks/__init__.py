"""The checks. Each reads a claim and yields a statement, or nothing if it does not apply."""
