"""Which requests are allowed: one check before every route, known or unknown. A request that is not explicitly allowed is refused.

It checks, in this order: the token (if there is one), the name in the Host header, the origin, the method. An allowed request can only
read. Every response has headers that stop other sites from embedding or reading the page.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any

from meshwright.errors import InputError

SHORTEST_TOKEN = 16  # characters: a shorter one could be guessed
SESSION_S = 12 * 3600.0
ENTER = "/enter/"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
READING = ("GET", "HEAD")
SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A response that refuses or redirects: a status, a sentence, headers."""

    status: int
    text: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(slots=True, kw_only=True)
class Door:
    """What a client needs to be let in: a token or none, and the host names of the page."""

    token: str | None = field(default=None, repr=False)
    names: frozenset[str] = LOCAL_NAMES
    allows_any_address: bool = False  # if bound to all addresses: DNS rebinding cannot use a literal address
    cookie: str = "meshwright"
    is_encrypted: bool = False
    ticket: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)  # in the link that works once
    on_entry: Callable[[str], None] = print  # called with the ticket of the next link
    _sessions: dict[str, float] = field(default_factory=dict, repr=False)  # digest -> when the session ends

    def __post_init__(self) -> None:
        if self.token is not None:
            check_token(self.token)

    def has_token(self, authorization: str) -> bool:
        """Whether the header has the token; the comparison takes the same time for a wrong token and a right one."""
        scheme, _, given = authorization.partition(" ")
        return self.token is not None and hmac.compare_digest(_digest(given.strip()), _digest(self.token)) and scheme.lower() == "bearer"

    def has_session(self, cookies: str) -> bool:
        """Whether the request has a valid cookie, which a client gets by using a link."""
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return False
        return found is not None and self._sessions.get(_digest(found.value), 0.0) > time.monotonic()

    def enter(self, ticket: str) -> str | None:
        """The cookie in exchange for the ticket, which works only once; None for a wrong ticket."""
        if not hmac.compare_digest(_digest(ticket), _digest(self.ticket)):
            return None
        now_s, session = time.monotonic(), secrets.token_urlsafe(32)
        self._sessions = {digest: end_s for digest, end_s in self._sessions.items() if end_s > now_s}
        self._sessions[_digest(session)] = now_s + SESSION_S
        self.ticket = secrets.token_urlsafe(24)
        self.on_entry(self.ticket)
        secure = "; Secure" if self.is_encrypted else ""
        return f"{self.cookie}={session}; HttpOnly; SameSite=Strict; Path=/; Max-Age={SESSION_S:.0f}{secure}"

    def knows(self, host: str) -> bool:
        """Whether a Host header names this page. Others are refused: a foreign name can be made to point here (DNS rebinding)."""
        name = host_name(host)
        return name in self.names or (self.allows_any_address and _is_address(name))


def check_token(token: str) -> str:
    """`token`, if it is long enough and valid in a header."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InputError("the token holds a space or a letter that no header can carry", where="token", fix="use letters, digits, - and _")
    if len(token) < SHORTEST_TOKEN:
        raise InputError(
            f"the token has {len(token)} letters", where="token", fix=f"use {SHORTEST_TOKEN} or more, or --new-token, which makes one"
        )
    return token


def host_name(host: str) -> str:
    """The name in a Host header without its port, in lower case. Text that is not a port stays part of the name, which is then unknown."""
    name = host.strip().lower()
    bare, colon, port = name.rpartition(":")
    if colon and port.isascii() and port.isdigit() and (bare.endswith("]") or ":" not in bare):
        name = bare
    return name[1:].removesuffix("]") if name.startswith("[") else name


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


class Guard:
    """An ASGI application that checks each request before it passes it to another application."""

    def __init__(self, inner: Application, door: Door) -> None:
        self.inner, self.door = inner, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] == "lifespan":
            return await self.inner(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})
        is_head = scope["method"] == "HEAD"
        answer = _answerer(send, without_body=is_head)
        refusal = self._refusal(scope)
        if refusal is not None:
            return await _refuse(answer, refusal)
        if is_head:
            scope = {**scope, "method": "GET"}
        await self.inner(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = list(scope["headers"])
        if self.door.token is not None:
            entry = self._entry(scope, headers)
            if entry is not None:
                return entry
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or not self.door.knows(hosts[0]):
            return Refusal(421, f"This page is not known as {', '.join(hosts)[:100] or 'nothing'}. Start it with --allow-host NAME.")
        if not _is_from_here(headers, hosts[0]):
            return Refusal(403, "Another site may not ask this page.")
        if scope["method"] not in READING:
            return Refusal(405, "This page can only be read.", ((b"allow", b"GET, HEAD"),))
        return None

    def _entry(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> Refusal | None:
        """None for a request that is allowed; a redirect for an unused link; 401 for all others."""
        tokens = _values(headers, b"authorization")
        if any(map(self.door.has_token, tokens)) or any(map(self.door.has_session, _values(headers, b"cookie"))):
            return None
        path = str(scope["path"])
        if path.startswith(ENTER) and scope["method"] == "GET" and self._is_named(headers):
            cookie = self.door.enter(path.removeprefix(ENTER))
            if cookie is not None:
                return Refusal(303, "Come in.", ((b"location", b"/"), (b"set-cookie", cookie.encode("latin-1"))))
        return Refusal(
            401,
            "This page needs a token: send it as `Authorization: Bearer TOKEN`, or open the link that `meshwright serve` printed.\n"
            "A link is good for one browser; the next one is printed where the page was started.",
            ((b"www-authenticate", b'Bearer realm="meshwright"'),),
        )

    def _is_named(self, headers: list[tuple[bytes, bytes]]) -> bool:
        hosts = _values(headers, b"host")
        return len(hosts) == 1 and self.door.knows(hosts[0])


def _is_from_here(headers: list[tuple[bytes, bytes]], host: str) -> bool:
    """Whether a request was made by this page, by a person or by a program. Pages of other sites may not make requests.

    A person who follows a link from another site is let in: that opens the page, and the other site cannot read it.
    """
    origins = _values(headers, b"origin")
    if any(origin.partition("://")[2].lower() != host.strip().lower() for origin in origins):
        return False
    site, mode = _values(headers, b"sec-fetch-site"), _values(headers, b"sec-fetch-mode")
    return site in ([], ["same-origin"], ["none"]) or mode == ["navigate"]


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


def _answerer(send: Send, without_body: bool) -> Send:
    """`send` with the headers that every response has; the body is left out in the response to a HEAD request."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in SECURITY_HEADERS}
            kept = [(key, value) for key, value in message.get("headers", ()) if key.lower() not in own]
            message = {**message, "headers": [*kept, *SECURITY_HEADERS]}
        elif without_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return answer


async def _refuse(answer: Send, refusal: Refusal) -> None:
    body = f"{refusal.text}\n".encode("utf-8", "replace")
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode()), *refusal.headers]
    await answer({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await answer({"type": "http.response.body", "body": body})
