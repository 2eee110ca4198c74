"""Show runs as a live page on this machine."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.errors import InputError

if TYPE_CHECKING:
    from meshwright.serve.guard import Door
    from meshwright.serve.server import Encryption
    from meshwright.serve.shelf import Shelf
    from meshwright.serve.stored_runs import StoredRuns

TOKEN_VARIABLE = "MESHWRIGHT_TOKEN"
DEFAULT_RUNS = Path("runs")
EVERYWHERE = ("0.0.0.0", "::")


def serve(
    runs: Annotated[
        Path, typer.Argument(metavar="DIR|URL", help="Folder of the run folders, or its URL in object storage.")
    ] = DEFAULT_RUNS,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; any other than this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0: any free port.")] = 8420,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            help=f"Token that clients must send; better in {TOKEN_VARIABLE}, which no process list shows.",
            show_default=False,
        ),
    ] = None,
    new_token: Annotated[bool, typer.Option("--new-token", help="Make a token and print it.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name of this machine. May be given several times.", show_default=False),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve https with this certificate (PEM).", show_default=False)
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key of the certificate (PEM).", show_default=False)] = None,
) -> None:
    """Show all runs as a live page: one while it trains, or several compared.

    Examples:

      meshwright serve

      meshwright serve experiments/runs --host 0.0.0.0 --new-token
    """
    from meshwright.storage import is_url

    check_installed()
    stored = _stored(runs) if is_url(runs) else None
    if stored is None:
        check_runs(runs)
    encryption = encryption_of(tls_certificate, tls_key)
    secret = chosen_token(token, new_token, host)

    from meshwright.serve import server
    from meshwright.serve.shelf import Shelf

    listener = server.bound(host, port)
    door = door_of(secret, host, listener.getsockname()[1], allow_host or [], encryption)
    shelf = Shelf(stored.folder, str(stored.place)) if stored else Shelf(runs)
    announce(shelf, host, listener.getsockname()[1], door, printed_token=secret if new_token else None)
    if stored:
        stored.start()
    server.serve(shelf, listener, door, encryption)


def _stored(url: Path) -> StoredRuns:
    """Runs at a URL; an error if there is no such bucket, or its server does not answer."""
    from meshwright.cli.urls import FIRST_PATIENCE_S, kept_runs
    from meshwright.record.stored import INDEX
    from meshwright.serve.stored_runs import StoredRuns
    from meshwright.storage import Remote

    place = Remote.at(url, FIRST_PATIENCE_S)
    if INDEX in place.files():
        raise InputError("this is the URL of one run", where=str(place), fix="give the URL of the folder that contains it")
    return StoredRuns(place, kept_runs(place), lambda what: print(f"meshwright: {what}", file=sys.stderr, flush=True))


def check_installed() -> None:
    """Raise if packages that the page needs are not installed."""
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        raise InputError(f"the live page needs {' and '.join(missing)}", where="this installation", fix="pip install 'meshwright[serve]'")


def check_runs(runs: Path) -> None:
    """Raise if this cannot be a folder of runs. The default one may be missing: the first run creates it."""
    if (runs / "run.json").exists():
        raise InputError(
            "this is the folder of one run", where=str(runs), fix=f"give the folder that contains it: meshwright serve {runs.parent}"
        )
    if not runs.is_dir() and (runs != DEFAULT_RUNS or runs.exists()):
        raise InputError("there is no such folder", where=str(runs), fix="give the folder that train or simulate wrote runs into")
    if runs.is_dir() and not os.access(runs, os.R_OK | os.X_OK):
        raise InputError("there is no permission to read this folder", where=str(runs), fix="run as a user who may read it")


def encryption_of(certificate: Path | None, key: Path | None) -> Encryption | None:
    """Certificate and key for https, checked by loading them; None if neither is given."""
    import ssl

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputError("https needs both a certificate and its key", where="--tls-certificate, --tls-key", fix="give both, or neither")
    from meshwright.serve.server import Encryption

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot use the certificate: {error}", where=f"{certificate}, {key}", fix="give PEM files that belong together"
        ) from None
    return Encryption(certificate=certificate, key=key)


def chosen_token(given: str | None, new: bool, host: str) -> str | None:
    """The token from the option or the environment, or a new one. None only if no other machine can reach the page."""
    import secrets

    from meshwright.serve.guard import LOCAL_NAMES, check_token

    found = given if given is not None else os.environ.get(TOKEN_VARIABLE)
    if new:
        if given is not None:
            raise InputError("both --token and --new-token are given", where="--token, --new-token", fix="choose one of them")
        return secrets.token_urlsafe(32)
    if found is not None:
        return check_token(found)
    if host not in LOCAL_NAMES:
        raise InputError(
            f"other machines can reach {host}, so the page needs a token",
            where="--host",
            fix=f"add --new-token, which makes one, or set {TOKEN_VARIABLE}",
        )
    return None


def door_of(token: str | None, host: str, port: int, allowed: list[str], encryption: Encryption | None) -> Door:
    """The rule of who may see the page at that address."""
    import socket

    from meshwright.serve.guard import LOCAL_NAMES, Door, host_name

    is_everywhere = host in EVERYWHERE
    own = {socket.gethostname().lower(), socket.getfqdn().lower()} if host not in LOCAL_NAMES else set()
    names = LOCAL_NAMES | {host_name(host) if ":" not in host else host.lower(), *own, *map(host_name, allowed)}

    def print_next(ticket: str) -> None:
        print(
            f"meshwright: a browser was let in; the link for the next one: {address(host, port, encryption is not None)}enter/{ticket}",
            file=sys.stderr,
            flush=True,
        )

    return Door(
        token=token,
        names=frozenset(names - set(EVERYWHERE)),
        allows_any_address=is_everywhere,
        cookie=f"meshwright-{port}",
        is_encrypted=encryption is not None,
        on_entry=print_next,
    )


def address(host: str, port: int, is_encrypted: bool) -> str:
    """The page's address as a person can type it."""
    import socket

    name = socket.gethostname() if host in EVERYWHERE else host
    return f"http{'s' if is_encrypted else ''}://{f'[{name}]' if ':' in name else name}:{port}/"


def announce(shelf: Shelf, host: str, port: int, door: Door, printed_token: str | None) -> None:
    """Print where the page is, and who can see it."""
    page = address(host, port, door.is_encrypted)
    print(f"runs   {shelf.name}{'' if shelf.runs.is_dir() else '  (does not exist yet: the first run makes it)'}")
    if door.token is None:
        print(f"page   {page}  (this machine only)")
    else:
        print(f"page   {page}enter/{door.ticket}  (this link works for one browser)")
        if printed_token:
            print(f"token  {printed_token}  (for programs: Authorization: Bearer TOKEN)")
        if not door.is_encrypted and host != "127.0.0.1":
            print("note   the connection is not encrypted: add --tls-certificate and --tls-key, or use an ssh tunnel")
    print("Ctrl-C stops it.", flush=True)
