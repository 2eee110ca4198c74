"""One file for each axis, and what they share: the mesh, collectives, shards and the optimizer over them."""
