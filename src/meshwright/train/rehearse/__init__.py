"""One rank of a plan, run alone: every collective and message is done by a local stand-in of the same shape and bytes."""
