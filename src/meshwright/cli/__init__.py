"""One file per verb: parse, load, call, print."""
