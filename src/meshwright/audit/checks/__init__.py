"""The checks: each takes a claim and yields a statement for what it can say of it, or nothing."""
