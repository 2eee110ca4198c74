"""The transformer; it contains no code for parallelism."""
