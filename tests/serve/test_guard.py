"""Nobody comes in without the token, under a foreign name, from another site, or to write."""

from __future__ import annotations

import re
import time

import pytest

from meshwright.errors import InputError
from meshwright.serve import guard as guard_module
from meshwright.serve.app import guarded, make_app
from meshwright.serve.guard import LOCAL_NAMES, Door, host_name
from meshwright.serve.shelf import Shelf

from .conftest import asked

TOKEN = "a-token-of-thirty-two-characters"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")
UNKNOWN = (
    "/nothing",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/favicon.ico",
    "/static/",
    "/static/../app.py",
    "/enter/wrong",
    "/enter/",
    "/api",
    "//",
)
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def shelf(runs, new_run):
    new_run("good", 3)
    shelf = Shelf(runs)
    yield shelf
    shelf.books.close()


@pytest.fixture
def addresses(shelf):
    """Every route there is, with a run's name where one belongs."""
    found = sorted({re.sub(r"\{.*?\}", "good", route.path) for route in make_app(shelf).routes})
    assert {"/", "/metrics", "/api/runs", "/api/runs/good", "/api/runs/good/steps", "/api/runs/good/racks", "/static/main.js"} <= set(found)
    return found


@pytest.fixture
def door():
    return Door(token=TOKEN, on_entry=lambda ticket: None)


def test_every_route_and_method_without_the_token_is_401(shelf, addresses, door):
    app = guarded(shelf, door)
    statuses = {(method, path): asked(app, method, path).status for path in (*addresses, *UNKNOWN) for method in METHODS}
    assert len(statuses) > 250
    assert set(statuses.values()) == {401}


def test_a_401_tells_nothing_but_how_to_come_in(shelf, door):
    answer = asked(guarded(shelf, door), "GET", "/api/runs")
    assert answer.headers["content-type"].startswith("text/plain")
    assert str(shelf.runs).encode() not in answer.body
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        TOKEN,
        "Bearer None",
        "Bearer \xff",
    ],
)
def test_a_wrong_token_is_none(shelf, door, value):
    assert asked(guarded(shelf, door), "GET", "/", {"authorization": value}).status == 401


@pytest.mark.parametrize("address", ["/", "/api/runs", "/api/runs/good", "/metrics", "/static/main.js"])
def test_the_token_opens(shelf, door, address):
    assert asked(guarded(shelf, door), "GET", address, BEARER).status == 200


def test_a_token_in_the_address_is_none(shelf, door):
    assert asked(guarded(shelf, door), "GET", f"/?token={TOKEN}").status == 401


def test_a_link_is_good_once_and_leaves_a_cookie(shelf):
    next_tickets = []
    door = Door(token=TOKEN, on_entry=next_tickets.append, cookie="meshwright-1")
    app, ticket = guarded(shelf, door), door.ticket
    assert asked(app, "HEAD", f"/enter/{ticket}").status == 401  # a preview does not use it up
    entry = asked(app, "GET", f"/enter/{ticket}")
    assert (entry.status, entry.headers["location"]) == (303, "/")
    cookie = entry.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert asked(app, "GET", f"/enter/{ticket}").status == 401
    held = {"cookie": cookie.partition(";")[0]}
    assert asked(app, "GET", "/api/runs", held).status == 200
    assert asked(app, "POST", "/api/runs", held).status == 405
    assert next_tickets == [door.ticket] != [ticket]


def test_a_session_ends(shelf, door, monkeypatch):
    app = guarded(shelf, door)
    held = {"cookie": asked(app, "GET", f"/enter/{door.ticket}").headers["set-cookie"].partition(";")[0]}
    now_s = time.monotonic()
    monkeypatch.setattr(guard_module.time, "monotonic", lambda: now_s + guard_module.SESSION_S + 1)
    assert asked(app, "GET", "/", held).status == 401


@pytest.mark.parametrize("cookie", ["meshwright=", "meshwright=wrong", "meshwright", '=;;;"', "\xff=1"])
def test_a_wrong_cookie_is_none(shelf, door, cookie):
    assert asked(guarded(shelf, door), "GET", "/", {"cookie": cookie}).status == 401


def test_without_a_token_nothing_but_reading_is_there(shelf, addresses):
    app = guarded(shelf, Door())
    for path in (*addresses, *UNKNOWN):
        for method in METHODS[2:]:
            answer = asked(app, method, path)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", [path for path in UNKNOWN if path != "//"])
def test_what_is_not_there_is_404(shelf, path):
    assert asked(guarded(shelf, Door()), "GET", path).status == 404


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8420",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "10.0.0.1",
        "[::2]",
        "127.0.0.1:80@evil.example",
        "[::1]evil.example",
        "localhost:",
    ],
)
def test_a_foreign_name_is_refused(shelf, host):
    assert asked(guarded(shelf, Door()), "GET", "/api/runs", host=host).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8420", "localhost", "LOCALHOST:9000", "[::1]:8420", "[::1]"])
def test_the_machine_s_own_names_are_known_at_any_port(shelf, host):
    assert asked(guarded(shelf, Door()), "GET", "/api/runs", host=host).status == 200


def test_bound_to_all_addresses_any_of_them_will_do_and_no_name(shelf):
    app = guarded(shelf, Door(token=TOKEN, allows_any_address=True, names=LOCAL_NAMES | {"trainer"}))
    assert [asked(app, "GET", "/", BEARER, host=host).status for host in ("10.1.2.3:80", "trainer", "[fe80::1]", "evil.example")] == [
        200,
        200,
        200,
        421,
    ]


def test_two_hosts_are_refused(shelf):
    assert asked(guarded(shelf, Door()), "GET", "/", {"Host": "evil.example"}).status == 421


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8420"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200),
    ],
)
def test_another_site_may_not_ask(shelf, headers, status):
    assert asked(guarded(shelf, Door()), "GET", "/api/runs", headers).status == status


@pytest.mark.parametrize("door", [Door(), Door(token=TOKEN)])
@pytest.mark.parametrize("path", ["/", "/api/runs", "/nothing", "/static/uplot/uPlot.iife.min.js"])
def test_every_answer_keeps_the_page_to_itself(shelf, door, path):
    headers = asked(guarded(shelf, door), "GET", path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_the_page_has_no_script_or_style_of_its_own_between_its_tags(shelf):
    page = asked(guarded(shelf, Door()), "GET", "/").body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert " style=" not in page
    assert re.findall(r"\bon\w+=", page) == []
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_head_is_get_without_a_body(shelf):
    app = guarded(shelf, Door())
    head, get = asked(app, "HEAD", "/"), asked(app, "GET", "/")
    assert (head.status, head.body, head.headers["content-length"]) == (200, b"", str(len(get.body)))


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "..",
        "%2e%2e",
        "..%2foutside",
        "%2e%2e%2foutside",
        "good/../../outside",
        "a%00b",
        "%2fetc%2fpasswd",
        "nobody",
        "a" * 300,
    ],
)
def test_no_address_leads_out_of_the_runs_folder(shelf, runs, name):
    from urllib.parse import unquote

    (runs.parent / "outside").mkdir(exist_ok=True)
    (runs.parent / "outside" / "run.json").write_text('{"secret": 1}')
    for path in (f"/api/runs/{name}", f"/api/runs/{unquote(name)}", f"/static/{name}", f"/static/{unquote(name)}"):
        answer = asked(guarded(shelf, Door()), "GET", path)
        assert answer.status == 404
        assert b"secret" not in answer.body


@pytest.mark.parametrize(
    "query", ["after=x", "after=-5", "after=99999999999999999999999", "life=1&bucket=0", "points=1", "first=-1&last=-1", "last=1e9"]
)
def test_odd_numbers_are_refused_or_harmless(shelf, query):
    app = guarded(shelf, Door())
    assert {asked(app, "GET", f"/api/runs/good{path}?{query}").status for path in ("", "/steps")} <= {200, 422}


@pytest.mark.parametrize("token", ["", "short", "has a space in it, and is long", "t\u00f6ken-of-some-length", "with\ncontrol-characters"])
def test_a_token_that_is_none_is_refused(token):
    with pytest.raises(InputError, match="token"):
        Door(token=token)


@pytest.mark.parametrize("host, name", [("a:80", "a"), ("[::1]:80", "::1"), ("::1", "::1"), (" A ", "a"), ("[::1", "::1"), ("", "")])
def test_names_in_host_headers(host, name):
    assert host_name(host) == name


def test_a_web_socket_is_closed(shelf):
    import asyncio

    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "websocket.connect"}

    asyncio.run(guarded(shelf, Door())({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert [message["type"] for message in sent] == ["websocket.close"]
