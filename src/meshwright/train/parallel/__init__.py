"""Parallelism: one file per axis, and what the axes share: the mesh, collectives, shards and their optimizer."""
