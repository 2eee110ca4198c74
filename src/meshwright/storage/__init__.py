"""Files at a URL: objects of S3 or Azure, with retries, one writer at a time, and copies on this machine that are checked."""

from __future__ import annotations

from pathlib import Path

from meshwright.storage.remote import Missing, Remote, StorageError, is_url

Location = Path | Remote  # a folder or a file on a disk, or the same in object storage

__all__ = ["Location", "Missing", "Remote", "StorageError", "is_url"]
