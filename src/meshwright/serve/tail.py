"""The new lines of a growing file: each byte is read once, however often `read` is called."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from meshwright.serve.files import open_plain

BLOCK_BYTES = 2 << 20  # read at once: about five thousand steps, an eighth of a second
LONGEST_LINE_BYTES = 1 << 20


@dataclass(slots=True)
class Tail:
    """How far one file has been read. A last line without a line end is not read yet: it is still being written."""

    path: Path
    offset: int = 0
    size: int = 0
    num_lines: int = 0
    _file: tuple[int, int] = (0, 0)  # device and inode: they differ if the file was replaced
    _inside_long_line: bool = field(default=False)

    @property
    def share_read(self) -> float:
        """The share of the file that has been read, 0 to 1; at most a block, or an unfinished line, is left."""
        return min(self.offset / self.size, 1.0) if self.size else 1.0

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read than an unfinished line."""
        return self.size - self.offset > LONGEST_LINE_BYTES

    @property
    def is_there(self) -> bool:
        """Whether the file existed at the last read."""
        return self._file != (0, 0)

    def read(self) -> tuple[bool, list[bytes]]:
        """Whether the file began again, and the next complete lines, at most a block of them; none if the file does not exist.

        A resumed run replaces the file with a shorter one, and what was read of the old file no longer counts. A line that is too long
        to be one of ours is returned as a single zero byte, which no parser accepts.
        """
        try:
            descriptor = open_plain(self.path)
        except FileNotFoundError:
            return self._began_anew((0, 0), 0), []
        try:
            state = os.fstat(descriptor)
            anew = self._began_anew((state.st_dev, state.st_ino), state.st_size)
            data = os.pread(descriptor, BLOCK_BYTES, self.offset) if state.st_size > self.offset else b""
        finally:
            os.close(descriptor)
        return anew, self._lines(data)

    def _began_anew(self, file: tuple[int, int], size: int) -> bool:
        anew = (self._file not in ((0, 0), file)) or size < self.offset
        if anew:
            self.offset = self.num_lines = 0
            self._inside_long_line = False
        self._file, self.size = file, size
        return anew

    def _lines(self, data: bytes) -> list[bytes]:
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) < LONGEST_LINE_BYTES:
                return []
            self.offset += len(data)
            self._inside_long_line = True
            return []
        self.offset += end
        lines = data[: end - 1].split(b"\n")
        if self._inside_long_line:
            lines[0] = b"\0"
            self._inside_long_line = False
        self.num_lines += len(lines)
        return lines
