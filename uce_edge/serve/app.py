"""The application: paths of the Open Inference Protocol, `/answer` for encoded images, and `/metrics`."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from uce_edge import __version__
from uce_edge.audit.decision_log import Audit
from uce_edge.errors import ImageError, UceEdgeError, UsageError, expected
from uce_edge.images import loader
from uce_edge.metadata import ImageSpec
from uce_edge.runtime.answers import Answer, refused
from uce_edge.runtime.answers import Request as Asked
from uce_edge.serve import protocol
from uce_edge.serve.access import LIVE, Guard, HostNames
from uce_edge.serve.drift_monitor import Watching
from uce_edge.serve.model_host import Hosted, Hosts, Limits, parse_reject
from uce_edge.serve.prometheus_metrics import CONTENT_TYPE, Gauges
from uce_edge.serve.request_batching import BusyError, Pixels, StoppingError
from uce_edge.serve.workers import Workers

_DECODERS = 2 * (os.cpu_count() or 1)
"""Images and JSON documents that are decoded at a time."""


class Refusal(Exception):
    """A request that gets another status than 200, and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """The endpoints."""

    def __init__(
        self,
        hosts: Hosts,
        limits: Limits,
        gauges: Gauges,
        audit: Audit | None = None,
        watching: Watching | None = None,
    ) -> None:
        """Serve some models.

        Args:
            hosts: The models.
            limits: What is taken.
            gauges: What is counted.
            audit: A log of decisions.
            watching: A monitor of the answers.
        """
        self._hosts, self._limits, self._gauges, self._audit = hosts, limits, gauges, audit
        self._watching = watching
        self._decoders, self._keeper = Workers(_DECODERS, "decode"), Workers(1, "log")
        self._ready = False

    def application(self, token: str | None = None, names: HostNames | None = None) -> Starlette:
        """The ASGI application.

        Args:
            token: What clients must know; None lets everybody in.
            names: The names under which it may be asked; None for any.
        """
        routes = [
            Route("/v2", self._server),
            Route(LIVE, self._live),
            Route("/v2/health/ready", self._server_ready),
            Route("/metrics", self._metrics),
        ]
        for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            routes += [
                Route(prefix, self._model),
                Route(f"{prefix}/ready", self._model_ready),
                Route(f"{prefix}/infer", partial(self._timed, "infer", self._infer), methods=["POST"]),
                Route(f"{prefix}/answer", partial(self._timed, "answer", self._answer), methods=["POST"]),
            ]
        guard = [Middleware(Guard, names=names, secret=token)]
        handlers = {404: _not_found, 405: _wrong_method}
        return Starlette(routes=routes, lifespan=self._lifespan, middleware=guard, exception_handlers=handlers)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        self._ready = True
        try:
            yield
        finally:
            self._ready = False
            await asyncio.gather(*(hosted.batcher.close() for hosted in self._hosts))

    def close(self) -> None:
        """Wait for decisions that are being logged."""
        self._decoders.close()
        self._keeper.close()

    def _is_stuck(self, seconds: float) -> bool:
        """Whether some kind of work has not gone on for so long: no request that needs it is answered."""
        workers = [self._decoders, self._keeper, *(hosted.batcher for hosted in self._hosts)]
        return any(worker.stuck(seconds) for worker in workers)

    async def _server(self, _: Request) -> Response:
        return JSONResponse({"name": "uce-edge", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def _live(self, _: Request) -> Response:
        live = not self._is_stuck(2 * self._limits.timeout)  # a long call may still end
        return JSONResponse({"live": live}, 200 if live else 503)

    async def _server_ready(self, _: Request) -> Response:
        ready = self._ready and not self._is_stuck(self._limits.timeout)
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _metrics(self, _: Request) -> Response:
        waiting: dict[str, int] = {}
        for hosted in self._hosts:
            waiting[hosted.named.name] = waiting.get(hosted.named.name, 0) + hosted.batcher.waiting
        return Response(self._gauges.text(waiting), headers={"Content-Type": CONTENT_TYPE})

    async def _model(self, request: Request) -> Response:
        try:
            hosted = self._find(request)
        except Refusal as refusal:
            return _refused(refusal.status, str(refusal))
        return JSONResponse(hosted.describe(self._hosts.versions(hosted.named.name)))

    async def _model_ready(self, request: Request) -> Response:
        try:
            hosted = self._find(request)
        except Refusal as refusal:
            return _refused(refusal.status, str(refusal))
        workers = (self._decoders, self._keeper, hosted.batcher)
        ready = self._ready and not any(worker.stuck(self._limits.timeout) for worker in workers)
        return JSONResponse({"name": hosted.named.name, "ready": ready}, 200 if ready else 503)

    async def _timed(
        self, endpoint: str, handle: Callable[[Hosted, Request], Awaitable[Response]], request: Request
    ) -> Response:
        """A request to a model: what goes wrong is a sentence, and all of it is counted."""
        start, model = time.perf_counter(), ""
        try:
            hosted = self._find(request)
            model = hosted.named.name
            async with asyncio.timeout(self._limits.timeout):
                response = await handle(hosted, request)
        except Refusal as refusal:
            response = _refused(refusal.status, str(refusal))
        except UsageError as error:
            response = _refused(400, str(error))
        except UceEdgeError as error:
            response = _refused(500, str(error))
        except TimeoutError:
            response = _refused(504, f"No answer within {self._limits.timeout:g} s. Try again with fewer passes.")
        except (BusyError, StoppingError) as error:
            reason = "is about to stop" if isinstance(error, StoppingError) else "has too many requests waiting"
            response = _refused(503, f"This server {reason}. Try again later.", {"Retry-After": "1"})
        except ClientDisconnect:
            response = Response(status_code=499)  # nobody reads it; the count tells
        self._gauges.request(model, endpoint, response.status_code, time.perf_counter() - start)
        return response

    async def _infer(self, hosted: Hosted, request: Request) -> Response:
        body, header = await self._body(request), request.headers.get(protocol.HEADER)
        wanted = await self._decoders.run(protocol.read, body, header)
        outputs = await hosted.infer(wanted)
        document: dict[str, Any] = {"model_name": hosted.named.name, "model_version": str(hosted.named.version)}
        if wanted.id is not None:
            document["id"] = wanted.id
        try:
            binary = protocol.binary_choice(wanted, list(outputs))
            body, length = await self._decoders.run(protocol.write, document, outputs, binary)
        except ValueError:  # JSON has no NaN
            raise UceEdgeError(
                f"The model {hosted.named.name} gives numbers that are not finite. Ask for binary outputs to see them, "
                "or export it again with --precision fp32."
            ) from None
        if length is None:
            return Response(body, media_type="application/json")
        return Response(body, headers={protocol.HEADER: str(length)}, media_type="application/octet-stream")

    async def _answer(self, hosted: Hosted, request: Request) -> Response:
        asked, path = self._asked(hosted, request), request.query_params.get("name", "request")
        content = await self._body(request)
        try:
            pixels = await self._decoders.run(_pixels, content, hosted.model.metadata.image)
            answer = await hosted.answer(pixels, asked, path)
        except ImageError as error:
            answer = refused(path, str(error), hosted.model.reject_rule(asked.reject))
        answer = Answer(**{**vars(answer), "content": content})
        if self._audit is not None or self._watching is not None:
            await self._keeper.run(self._keep, answer, asked)
        if answer.prediction is not None:
            self._gauges.decision(hosted.named.name, answer.prediction)
        return JSONResponse(answer.as_dict(), 200 if answer.ok else 422)

    def _keep(self, answer: Answer, asked: Asked) -> None:
        """Log an answer, and bet on it."""
        if self._audit is not None:
            self._audit.add(answer, asked)
        if self._watching is not None:
            self._watching.add(answer)

    def _asked(self, hosted: Hosted, request: Request) -> Asked:
        query = request.query_params
        unknown = set(query) - {"samples", "seed", "reject", "name"}
        if unknown:
            rule = "some of samples, seed, reject and name"
            raise UsageError(expected("the query", rule, sorted(unknown), "For example: ?reject=auto"))
        samples, seed = (_whole(query.get(name), name) for name in ("samples", "seed"))
        reject = parse_reject(query["reject"]) if "reject" in query else hosted.reject
        hosted.model.reject_rule(reject)
        hosted.model.seeds(samples, seed or 0)
        return Asked(samples, seed or 0, reject)

    async def _body(self, request: Request) -> bytes:
        """The body, as far as it may go."""
        too_long = Refusal(413, f"A request may have at most {self._limits.max_body} bytes. Send fewer images.")
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced[:20]) > self._limits.max_body:
            raise too_long
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._limits.max_body:
                raise too_long
            parts.append(part)
        if not size:
            raise UsageError("The request has no body. Send a tensor to /infer, or an image file to /answer.")
        return b"".join(parts)

    def _find(self, request: Request) -> Hosted:
        name, version = request.path_params["name"], request.path_params.get("version")
        hosted = self._hosts.find(name, version)
        if hosted is None:
            wanted = name if version is None else f"{name}, version {version}"
            raise Refusal(404, f"There is no model {wanted}. This server has: {', '.join(self._hosts.names())}.")
        return hosted


def _pixels(content: bytes, spec: ImageSpec) -> Pixels:
    """The pixels of an encoded image; what is odd about them is not said where clients could fill a log with it."""
    return loader.load(content, spec, "The image data", note=lambda _: None)


def _whole(text: str | None, name: str) -> int | None:
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise UsageError(expected(f"`{name}`", "a whole number", text, f"For example: ?{name}=25"))
    return None if text is None else int(text)


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    sendable = message.encode(errors="replace").decode()  # JSON may name a tensor by half a character
    return JSONResponse({"error": sendable}, status, headers)


def _not_found(request: Request, _: Exception) -> Response:
    return _refused(404, f"There is no {request.url.path} here. The models are under /v2/models/NAME.")


def _wrong_method(request: Request, _: Exception) -> Response:
    return _refused(405, f"{request.url.path} does not take {request.method}.")
