"""The server on this machine plays what it is told, as it is told, and hears everything."""

import http.client
import json
import socket
import threading
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from refold.testing.loopback import Heard, Loopback, Reply


def connect(server: Loopback) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)


def ask(connection: http.client.HTTPConnection, body: Any = None, path: str = "/v1/ask") -> http.client.HTTPResponse:
    connection.request("POST", path, body=json.dumps(body), headers={"X-Said": "yes"})
    return connection.getresponse()


def raw(server: Loopback) -> bytes:
    """Everything that comes back on a connection of its own."""
    with socket.create_connection((urlsplit(server.url).hostname, urlsplit(server.url).port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65_536), b""))


def test_replies_come_in_order_and_requests_are_remembered() -> None:
    # given two replies
    with Loopback([Reply.json({"n": 1}, retry_after="2"), Reply.html(503)]) as server:
        connection = connect(server)
        # when it is asked three times over one connection
        first = ask(connection, {"q": "ä"})
        assert (first.status, first.headers["retry-after"], json.loads(first.read())) == (200, "2", {"n": 1})
        second = ask(connection)
        assert (second.status, second.headers["content-type"], second.read()[:9]) == (503, "text/html", b"<!doctype")
        # then beyond the last reply it refuses
        assert ask(connection).status == 400
        connection.close()
    # and it heard everything
    heard = server.requests[0]
    assert (heard.method, heard.path, heard.headers["x-said"], heard.json) == ("POST", "/v1/ask", "yes", {"q": "ä"})
    assert len(server.requests) == 3


def test_a_stream_comes_in_the_pieces_it_was_cut_into() -> None:
    with Loopback([Reply.events(b"data: 1\n\n", [3, 7])]) as server:
        received = raw_until_end(server)
    assert received.partition(b"\r\n\r\n")[2] == b"3\r\ndat\r\n4\r\na: 1\r\n2\r\n\n\n\r\n0\r\n\r\n"


def raw_until_end(server: Loopback) -> bytes:
    """What comes back up to the end of a chunked body."""
    with socket.create_connection((urlsplit(server.url).hostname, urlsplit(server.url).port), timeout=10) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        received = b""
        while not received.endswith(b"0\r\n\r\n"):
            received += connection.recv(65_536)
        return received


def test_a_body_breaks_off_where_it_is_told_to() -> None:
    # given a stream without its end marker, a body shorter than it was said to be, and nothing at all
    replies = [Reply.events(b"data: 1", end="stop"), Reply(b"half", end="stop"), Reply.nothing("stop")]
    with Loopback(replies) as server:
        assert raw(server).endswith(b"7\r\ndata: 1\r\n")
        assert b"content-length: 5\r\n\r\nhalf" in raw(server)
        assert raw(server) == b""


@pytest.mark.parametrize("reply", [Reply.nothing(), Reply.events(b"data: 1", end="reset")])
def test_a_connection_is_reset(reply: Reply) -> None:
    with Loopback([reply]) as server, pytest.raises(ConnectionResetError):
        raw(server)


def test_it_says_when_a_client_has_gone() -> None:
    # given a reply that never ends
    with Loopback([Reply.events(b"data: 1\n\n", end="hang")]) as server:
        connection = connect(server)
        response = ask(connection)
        assert response.read(4) == b"data"
        heard = server.wait()
        assert not heard.gone.is_set()
        # when the client closes its socket
        response.close()
        connection.close()
        # then it is known
        assert heard.gone.wait(10)


def test_a_function_may_answer_and_what_it_raises_is_heard_of() -> None:
    # given a server that answers as a function says, which fails for the second request
    def play(request: Heard) -> Reply:
        assert request.json == {"right": True}, "wrong"
        return Reply.json("fine")

    def asked_twice() -> None:
        with Loopback(play) as server, closing(connect(server)) as connection:
            assert ask(connection, {"right": True}).read() == b'"fine"'
            # when that is asked, then it is refused there
            assert ask(connection, {"right": False}).status == 400

    # and raised here
    with pytest.raises(AssertionError, match="wrong"):
        asked_twice()


def test_who_does_not_speak_http_is_told_so() -> None:
    with Loopback() as server, socket.create_connection((urlsplit(server.url).hostname, urlsplit(server.url).port), timeout=10) as connection:
        connection.sendall(b"\x16\x03\x01")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_waiting_for_a_request_has_an_end() -> None:
    with Loopback() as server, pytest.raises(TimeoutError, match="0 requests"):
        server.wait(timeout_s=0.01)


def test_nothing_is_left_of_it() -> None:
    # given a server that is left while it answers
    before = set(threading.enumerate())
    with Loopback([Reply.events(b"data: 1\n\n", end="hang")]) as server:
        connection = connect(server)
        ask(connection)
    connection.close()
    # then its thread has ended, and nothing listens any more
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        raw(server)
