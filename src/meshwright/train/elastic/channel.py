"""The connection between the leading supervisor of a run and the supervisor of another node.

Both prove the secret of the job before anything else is read: each sends a random word, and an HMAC over both words. After that every
message is sealed (`train.sealed`), and bound to the two words, to its direction and to its number, so that it can be neither read nor
made up, left out, repeated or sent back. Without a secret the same code runs with an empty one: mistakes are found, strangers are not kept
out.

No call waits: a process that forks ranks has no threads, and must look after all its connections at once.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
import uuid
from collections import deque
from contextlib import suppress
from typing import Any

from meshwright.train.sealed import Seal, is_proven, proof

HELLO = "meshwright supervisor 1"
HELLO_S = 10.0  # in which the other end must prove itself
MOST_HELLO_BYTES = 512
MOST_BYTES = 4 << 20  # of one message
READ_BYTES = 1 << 16
LENGTH = struct.Struct(">I")


class Refused(Exception):
    """The other end did not prove that it belongs to the job."""


class Channel:
    """Sealed messages in both directions, in order. `leads`: whether this end is that of the leading supervisor."""

    def __init__(self, connection: socket.socket, secret: bytes, name: str, *, leads: bool, received: bytes = b"") -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._seal = Seal(secret, name)
        self._ways = ("down", "up") if leads else ("up", "down")  # of what is sent, and of what is received
        self._waiting: deque[bytes] = deque()
        self._leaving, self._coming = b"", bytearray(received)
        self._num_sent = self._num_received = 0
        self.ended = ""  # why nothing more can be received

    def fileno(self) -> int:
        """The number of the connection, to wait for messages."""
        return self._connection.fileno()

    @property
    def own_host(self) -> str:
        """The address of this end."""
        return str(self._connection.getsockname()[0])

    def say(self, what: str, /, **detail: Any) -> None:
        """Send a message with the next `flush`. A signal handler may call this."""
        self._waiting.append(json.dumps([what, detail]).encode())

    def flush(self) -> bool:
        """Send what can be sent without waiting; whether nothing is left."""
        with suppress(BlockingIOError):
            while self._leaving or self._waiting:
                if not self._leaving:
                    self._leaving = self._sealed(self._waiting.popleft())
                try:
                    sent = self._connection.send(self._leaving)
                except BlockingIOError:
                    raise
                except OSError as error:
                    self.ended = self.ended or _why(error)
                    return True
                self._leaving = self._leaving[sent:]
        return not (self._leaving or self._waiting)

    def heard(self) -> list[tuple[str, dict[str, Any]]]:
        """The messages that have come; afterwards `ended` says whether more can come."""
        if not self.ended:
            self._read()
        found: list[tuple[str, dict[str, Any]]] = []
        while len(self._coming) >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._coming)
            if size > MOST_BYTES:
                self.ended = "a message was far too long"
                break
            if len(self._coming) < LENGTH.size + size:
                break
            data = bytes(self._coming[LENGTH.size : LENGTH.size + size])
            del self._coming[: LENGTH.size + size]
            plain = self._seal.opened(f"{self._ways[1]}/{self._num_received}", data)
            if plain is None:
                self.ended = "a message was not from a supervisor of this job"
                break
            self._num_received += 1
            try:
                what, detail = json.loads(plain)
                found.append((str(what), dict(detail)))
            except (ValueError, TypeError):
                self.ended = "a message was not from a supervisor of this job"
                break
        return found

    def close(self, within_s: float = 0.0) -> None:
        """Close the connection, after what is left to send was sent, if that takes no longer than this."""
        until_s = time.monotonic() + within_s
        while not self.ended and not self.flush() and time.monotonic() < until_s:
            time.sleep(0.01)
        self.ended = self.ended or "it was closed"
        self._connection.close()

    def leave_to_parent(self) -> None:
        """In a process that was forked: close this end here, and not for the parent."""
        os.close(self._connection.detach())

    def _sealed(self, plain: bytes) -> bytes:
        data = self._seal.sealed(f"{self._ways[0]}/{self._num_sent}", plain)
        self._num_sent += 1
        return LENGTH.pack(len(data)) + data

    def _read(self) -> None:
        try:
            while len(self._coming) <= MOST_BYTES:
                data = self._connection.recv(READ_BYTES)
                if not data:
                    self.ended = "its connection was closed"
                    return
                self._coming += data
        except BlockingIOError:
            return
        except OSError as error:
            self.ended = _why(error)


def _why(error: OSError) -> str:
    return f"its connection was lost ({error.strerror or error})"


class Guest:
    """A connection that was accepted, and has not proven yet that it is from a supervisor of this job."""

    def __init__(self, connection: socket.socket, address: str, secret: bytes) -> None:
        connection.setblocking(False)
        self.connection, self.address, self._secret = connection, address, secret
        self._word = uuid.uuid4().hex
        self._until_s = time.monotonic() + HELLO_S
        self._received = b""
        with suppress(OSError):
            connection.send(f"{HELLO} {self._word}\n".encode())

    def fileno(self) -> int:
        """The number of the connection, to wait for its proof."""
        return self.connection.fileno()

    def leave_to_parent(self) -> None:
        """In a process that was forked: close this end here, and not for the parent."""
        os.close(self.connection.detach())

    def channel(self) -> tuple[int, Channel] | None:
        """The number of the node and the channel to it, once it has proven itself; None: not yet. `Refused`: it will not."""
        with suppress(BlockingIOError):
            try:
                data = self.connection.recv(MOST_HELLO_BYTES)
            except BlockingIOError:
                raise
            except OSError as error:
                raise Refused(_why(error)) from None
            if not data:
                raise Refused("it closed its connection")
            self._received += data
        line, ended, rest = self._received.partition(b"\n")
        if not ended:
            if len(self._received) >= MOST_HELLO_BYTES or time.monotonic() > self._until_s:
                raise Refused("it did not say which node it is")
            return None
        words = line.decode(errors="replace").split()
        if len(words) != 3 or not (words[0].isascii() and words[0].isdigit() and len(words[0]) < 7):
            raise Refused("it does not speak as a supervisor does")
        node, word, given = int(words[0]), words[1], words[2]
        if not is_proven(given, self._secret, "supervisor", self._word, word, node):
            raise Refused("it does not have the secret of this job")
        answer = proof(self._secret, "leading supervisor", self._word, word, node)
        try:
            self.connection.send(f"{answer}\n".encode())
            return node, Channel(self.connection, self._secret, f"{self._word}/{word}", leads=True, received=rest)
        except OSError as error:
            raise Refused(_why(error)) from None


def joined(host: str, port: int, node: int, secret: bytes, timeout_s: float) -> Channel:
    """The channel to the leading supervisor, proven from both ends; OSError if nobody listens there, `Refused` if it is somebody else."""
    until_s = time.monotonic() + timeout_s
    connection = socket.create_connection((host, port), timeout=timeout_s)
    try:
        hello = _line(connection, until_s).split()
        if len(hello) != 4 or " ".join(hello[:3]) != HELLO:
            raise Refused("another program listens there")
        theirs, own = hello[3], uuid.uuid4().hex
        connection.sendall(f"{node} {own} {proof(secret, 'supervisor', theirs, own, node)}\n".encode())
        if not is_proven(_line(connection, until_s), secret, "leading supervisor", theirs, own, node):
            raise Refused("what listens there does not have the secret of this job")
        return Channel(connection, secret, f"{theirs}/{own}", leads=False)
    except TimeoutError:
        connection.close()
        raise Refused("another program listens there: it does not answer as a supervisor would") from None
    except BaseException:
        connection.close()
        raise


def _line(connection: socket.socket, until_s: float) -> str:
    """One line, byte by byte: what follows it belongs to the channel."""
    found = b""
    while not found.endswith(b"\n"):
        connection.settimeout(max(until_s - time.monotonic(), 0.01))
        one = connection.recv(1)
        if not one:
            raise Refused("it closed the connection: the secret of this job may be another one there")
        found += one
        if len(found) > MOST_HELLO_BYTES:
            raise Refused("another program listens there")
    return found.decode(errors="replace").strip()
