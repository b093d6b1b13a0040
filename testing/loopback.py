"""A provider on this machine: a real HTTP server on 127.0.0.1 that plays scripted replies and remembers what it was asked.

Apart from the scripted model, because here a provider's SDK, real sockets and everything that can go wrong on them stand between a test and its replies.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from threading import Condition, Event, Thread
from typing import Any, Final, Literal, Self

End = Literal["whole", "stop", "reset", "hang"]
"""How a reply ends: as HTTP wants it; the connection is closed too early; it is reset; nothing more ever comes."""

SSE: Final = "text/event-stream; charset=utf-8"


@dataclass(frozen=True)
class Reply:
    """One response. A list as `body` is streamed, each piece a chunk of its own, so that a client reads it as it was cut; bytes come whole, with their length.

    `every_s` seconds pass before each piece. With an `end` that is not `whole` the body breaks off behind its last piece; without a body even the head is missing.
    """

    body: bytes | Sequence[bytes] | None = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    every_s: float = 0
    end: End = "whole"

    @classmethod
    def json(cls, value: Any, status: int = 200, **headers: str) -> Self:
        """A JSON document; `retry_after="2"` becomes the header `retry-after`."""
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        return cls(json.dumps(value).encode(), status, {"content-type": "application/json", **named})

    @classmethod
    def events(cls, body: bytes, cuts: Iterable[int] = (), *, every_s: float = 0, end: End = "whole") -> Self:
        """A stream of server-sent events, cut at these places."""
        places = sorted({0, len(body), *cuts})
        pieces = [body[start:stop] for start, stop in pairwise(places)]
        return cls(pieces, headers={"content-type": SSE}, every_s=every_s, end=end)

    @classmethod
    def html(cls, status: int = 200) -> Self:
        """What a proxy or a wrong address answers with."""
        return cls(b"<!doctype html><title>Welcome</title><p>It works.", status, {"content-type": "text/html"})

    @classmethod
    def nothing(cls, end: Literal["stop", "reset", "hang"] = "reset") -> Self:
        """Not one byte."""
        return cls(None, end=end)


@dataclass(frozen=True)
class Heard:
    """One request as it came. Names of headers are in small letters; `json` is the parsed body, None where there was none."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    gone: Event
    """Set once the client has closed the connection on which it came."""

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None


Play = Callable[[Heard], Reply]
OUT_OF_REPLIES: Final = "the loopback server has no reply left for this request"


class Loopback:
    """The server, while it is entered. It gives its replies in order, or what a function makes of each request; beyond the last one it answers 400.

    `url` is its address without a path. `requests` holds everything it was asked, in order. What such a function raises is answered with 400 and raised again on leaving.
    """

    def __init__(self, replies: Iterable[Reply] | Play = ()) -> None:
        self._play: Play = replies if callable(replies) else self._next
        self._replies: list[Reply] = [] if callable(replies) else list(replies)
        self._given = 0
        self._changed = Condition()
        self._faults: list[Exception] = []
        self.requests: list[Heard] = []
        self.url = ""

    def add(self, *replies: Reply) -> None:
        """More replies, behind those that are there."""
        self._replies += replies

    def wait(self, requests: int = 1, timeout_s: float = 10) -> Heard:
        """Block until so many requests have come, and give the last of them. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= requests, timeout_s):
                raise TimeoutError(f"{len(self.requests)} requests came within {timeout_s} s, not {requests}")
            return self.requests[requests - 1]

    def _next(self, _: Heard) -> Reply:
        self._given += 1
        return self._replies[self._given - 1] if self._given <= len(self._replies) else Reply.json({"error": {"message": OUT_OF_REPLIES}}, 400)

    def heard(self, request: Heard) -> Reply:
        """Remember a request and choose what it gets."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        try:
            return self._play(request)
        except Exception as fault:  # noqa: BLE001 - a test's own function or assertion; its test hears of it on leaving
            self._faults.append(fault)
            return Reply.json({"error": {"message": f"{type(fault).__name__}: {fault}"}}, 400)

    # -- its thread

    def __enter__(self) -> Self:
        listening = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:{1}".format(*listening.getsockname())
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = Thread(target=self._run, args=(listening,), name="refold-loopback")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._faults:
            raise self._faults[0]

    def _run(self, listening: socket.socket) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(listening))

    async def _serve(self, listening: socket.socket) -> None:
        connections: set[_Connection] = set()
        server = await self._loop.create_server(lambda: _Connection(self, connections), sock=listening)
        await self._stop.wait()
        server.close()
        if talking := [connection.abort() for connection in connections]:
            await asyncio.wait(talking)


class _Connection(asyncio.Protocol):
    """One connection: requests and replies in turn, until either side has enough."""

    def __init__(self, server: Loopback, connections: "set[_Connection]") -> None:
        self._server, self._connections = server, connections
        self._received = bytearray()
        self._more = asyncio.Event()
        self._may_write = asyncio.Event()
        self._gone = Event()
        self._left = False
        """Whether it was this side that closed the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(0)  # Whoever waits to write then waits until everything is with the system.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._may_write.set()
        self._connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._talk())

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._more.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it was lost makes no difference
        if not self._left:
            self._gone.set()
        self._task.cancel()
        self._connections.discard(self)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def abort(self) -> "asyncio.Task[None]":
        """Give up; what it gives is done once the connection is no more."""
        self._left = True
        self._transport.abort()
        return self._task

    # -- one request after another

    async def _talk(self) -> None:
        while True:
            request = await self._hear()
            reply = self._server.heard(request) if request is not None else Reply(status=400, end="stop")
            await self._answer(reply)
            if reply.end == "whole" and request is not None and request.headers.get("connection", "").lower() != "close":
                continue
            return await self._leave(reply.end)

    async def _hear(self) -> Heard | None:
        """The next request; None where what comes is not HTTP, as from a client that wants TLS."""
        while not self._received:
            await self._receive()
        if not self._received[:1].isalpha():
            return None
        head = await self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): text.strip() for name, _, text in (line.partition(":") for line in lines if line)}
        return Heard(method, path, headers, await self._exactly(int(headers.get("content-length", "0"))), self._gone)

    async def _until(self, mark: bytes) -> bytes:
        while (found := self._received.find(mark)) < 0:
            await self._receive()
        return await self._exactly(found + len(mark))

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            await self._receive()
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    async def _receive(self) -> None:
        """Wait for more; a connection that is lost cancels it."""
        self._more.clear()
        await self._more.wait()

    async def _answer(self, reply: Reply) -> None:
        if reply.body is None:
            return
        streamed = not isinstance(reply.body, bytes)
        pieces = [reply.body] if isinstance(reply.body, bytes) else reply.body
        size = len(pieces[0]) + (reply.end != "whole") if not streamed else 0  # A body that breaks off was announced as longer.
        length = {"transfer-encoding": "chunked"} if streamed else {"content-length": str(size)}
        lines = [f"HTTP/1.1 {reply.status} {_phrase(reply.status)}", *(f"{name}: {text}" for name, text in {**reply.headers, **length}.items())]
        await self._write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        for piece in pieces:
            if reply.every_s:
                await asyncio.sleep(reply.every_s)
            if piece:
                await self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if streamed else piece)
        if streamed and reply.end == "whole":
            await self._write(b"0\r\n\r\n")

    async def _write(self, data: bytes) -> None:
        self._transport.write(data)
        await self._may_write.wait()

    async def _leave(self, end: End) -> None:
        if end == "hang":
            await asyncio.Event().wait()
        self._left = True
        if end == "reset":
            # A socket that lingers for no time is reset when it is closed.
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
