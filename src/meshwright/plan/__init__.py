"""Which layout, and what it will do."""
