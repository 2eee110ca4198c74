"""Checkpoints of any layout: pieces of whole tensors in safetensors files, and a JSON manifest with the hashes of all bytes."""

from meshwright.train.checkpoint.durable import CheckpointError
from meshwright.train.checkpoint.folder import Found, Keep, newest, prune
from meshwright.train.checkpoint.loading import load, newest_loadable, verify
from meshwright.train.checkpoint.manifest import Manifest, read_manifest
from meshwright.train.checkpoint.piece import Piece
from meshwright.train.checkpoint.same import check_same
from meshwright.train.checkpoint.saver import AsyncSaver, SaveReport, shared_token
from meshwright.train.checkpoint.saving import Saved, save

__all__ = [
    "AsyncSaver",
    "CheckpointError",
    "Found",
    "Keep",
    "Manifest",
    "Piece",
    "SaveReport",
    "Saved",
    "check_same",
    "load",
    "newest",
    "newest_loadable",
    "prune",
    "read_manifest",
    "save",
    "shared_token",
    "verify",
]
