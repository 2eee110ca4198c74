"""The routes: the page, its files, runs as JSON, metrics. All of them only read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from meshwright.errors import MeshwrightError, printable
from meshwright.serve.guard import Door, Guard
from meshwright.serve.metrics import CONTENT_TYPE, exposition
from meshwright.serve.shelf import Shelf
from meshwright.serve.static_files import static_files
from meshwright.serve.steps import NUM_POINTS

if TYPE_CHECKING:
    from fastapi import FastAPI

LARGEST = 2**53


def make_app(shelf: Shelf) -> FastAPI:
    """The application without the guard."""
    from fastapi import FastAPI

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        shelf.books.close()

    app = FastAPI(title="meshwright", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    _add_files(app)
    _add_runs(app, shelf)
    app.add_exception_handler(MeshwrightError, _refused)
    return app


def guarded(shelf: Shelf, door: Door) -> Guard:
    """The application behind the guard. The server runs this one."""
    return Guard(make_app(shelf), door)


def _add_files(app: FastAPI) -> None:
    from starlette.responses import Response

    def answer(content: bytes, media_type: str) -> Callable[[], Any]:
        return lambda: Response(content, media_type=media_type)

    for address, (content, media_type) in static_files().items():
        app.add_api_route(address, answer(content, media_type), methods=["GET"], response_model=None)


def _add_runs(app: FastAPI, shelf: Shelf) -> None:
    """Add the routes that read run folders: plain functions, which run in threads, so that a slow disk does not block other requests."""
    from starlette.responses import Response

    def runs() -> Any:
        return _json(shelf.listed())

    def run(name: str, life: int = 0, after: int = 0, bucket: int = 0, events: int = 0) -> Any:
        return _json(shelf.shown(name, life=life, after=after, bucket=bucket, num_events=events))

    def steps(name: str, first: int = 0, last: int = 0, points: int = NUM_POINTS) -> Any:
        return _json(shelf.steps(name, min(max(first, 0), LARGEST), min(max(last, 0), LARGEST), min(max(points, 10), NUM_POINTS)))

    def racks(name: str) -> Any:
        return _json(shelf.racks(name))

    def metrics() -> Any:
        return Response(exposition(shelf.listed()["runs"]), media_type=CONTENT_TYPE)

    routes: dict[str, Callable[..., Any]] = {
        "/api/runs": runs,
        "/api/runs/{name}": run,
        "/api/runs/{name}/steps": steps,
        "/api/runs/{name}/racks": racks,
        "/metrics": metrics,
    }
    for address, function in routes.items():
        app.add_api_route(address, function, methods=["GET"], response_model=None)


def _json(value: Any) -> Any:
    """A JSON response in ASCII: names may contain characters that cannot be encoded."""
    from starlette.responses import Response

    return Response(json.dumps(value, allow_nan=False, separators=(",", ":")), media_type="application/json")


async def _refused(_: object, error: Exception) -> Any:
    """The response to a request for a run that does not exist."""
    from starlette.responses import JSONResponse

    assert isinstance(error, MeshwrightError)
    problem = {"what": printable(error.what), "where": printable(error.where), "fix": printable(error.fix)}
    return JSONResponse({"problem": problem}, status_code=404)
