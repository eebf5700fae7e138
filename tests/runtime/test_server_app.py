"""The server's door: keys, origins, limits, errors, clients that leave or do not read."""

import http.client
import importlib.util
import json
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


@pytest.fixture
def site():
    with fake.served(keep_alive=0.05) as site:
        yield site


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def open_request(site, body, path="/generate"):
    """A connection on which a POST was sent and nothing was read."""
    where = urlsplit(site.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    connection.request("POST", path, json.dumps(body))
    return connection


# ---- keys and origins ----


def test_key():
    with fake.served(api_key="geheim-é") as site:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "geheim"},
            {"Authorization": "Bearer "},
        ):
            status, error = site.fail("/generate", {"text": "a"}, headers=headers)
            assert (status, error["type"]) == (401, "Unauthorized")
            status, error = site.fail("/v1/models", None, headers=headers)
            assert (status, error["type"]) == (401, "authentication_error")
            assert error["code"] == "invalid_api_key"
        assert site.fail("/no/such/path", None)[0] == 401
        assert not site.engine.seen
        right = {"Authorization": b"Bearer geheim-\xc3\xa9"}
        assert site.call("/v1/models", headers=right)[0] == 200
        assert site.call("/get_model_info", headers=right)[0] == 200
        for path in ("/health", "/health_generate", "/ready"):
            assert site.call(path)[0] == 200


def preflight(site, origin="http://page.example"):
    where = urlsplit(site.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    connection.request(
        "OPTIONS",
        "/v1/chat/completions",
        headers={"Origin": origin, "Access-Control-Request-Method": "POST"},
    )
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_preflight_needs_no_key():
    with fake.served(api_key="x", cors_origins=("http://page.example",)) as site:
        answer = preflight(site)
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == "http://page.example"
        assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]
        assert "Access-Control-Allow-Credentials" not in answer.headers
        assert "Access-Control-Allow-Origin" not in preflight(site, "http://evil.example").headers
        # A page can read errors too.
        _, headers, _ = site.call("/v1/models", headers={"Origin": "http://page.example"})
        assert headers["Access-Control-Allow-Origin"] == "http://page.example"


def test_no_origin_by_default(site):
    assert "Access-Control-Allow-Origin" not in preflight(site).headers
    _, headers, _ = site.call("/health", headers={"Origin": "http://page.example"})
    assert "Access-Control-Allow-Origin" not in headers


def test_every_origin_for_a_star():
    with fake.served(cors_origins=("*",)) as site:
        assert preflight(site).headers["Access-Control-Allow-Origin"] == "http://page.example"


def test_stream_to_an_allowed_origin():
    with fake.served(cors_origins=("http://page.example",)) as site:
        body = json.dumps({"text": "a", "stream": True})
        where = urlsplit(site.url)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
        connection.request("POST", "/generate", body, {"Origin": "http://page.example"})
        answer = connection.getresponse()
        assert answer.headers["Access-Control-Allow-Origin"] == "http://page.example"
        answer.read()
        connection.close()


# ---- limits and errors ----


def test_large_body():
    with fake.served(max_body_size="1K") as site:
        status, error = site.fail("/generate", {"text": "a" * 2000})
        assert status == 413
        assert error["type"] == "InvalidRequest"
        assert site.post("/generate", {"text": "a" * 500})
        # Neither is one without a length, sent in chunks.
        where = urlsplit(site.url)
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
        parts = (b'{"text": "', b"a" * 1500, b'"}')
        connection.request("POST", "/generate", iter(parts), encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()


def test_slow_body():
    with fake.served(client_timeout=0.2) as site:
        where = urlsplit(site.url)
        with socket.create_connection((where.hostname, where.port), 20) as sock:
            sock.sendall(b"POST /generate HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
            assert b" 408 " in sock.recv(1000)


def test_unknown_paths_and_methods(site):
    status, error = site.fail("/nope", None)
    assert (status, error["type"]) == (404, "NotFound")
    assert "/nope" in error["message"]
    status, error = site.fail("/v1/nope", None)
    assert (status, error["type"]) == (404, "not_found_error")
    status, headers, answer = site.call("/generate", method="GET")
    assert status == 405
    assert headers["Allow"] == "POST,PUT"
    assert answer["error"]["type"] == "InvalidRequest"


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_what_we_lack(site, path):
    for method in ("GET", "POST"):
        status, error = site.fail(path, {"text": "a"}, method=method)
        assert status == 400
        assert "not supported" in error["message"]


def test_fault_of_the_server(site, caplog):
    status, error = site.fail("/generate", {"text": "bug"})
    assert status == 500
    assert "RuntimeError" in error["message"]
    assert "a secret of the server" in caplog.text
    assert "Traceback" in caplog.text


def test_error_after_the_first_line(site):
    """The headers are out: the error is a line, and the stream still ends."""

    async def breaks(request, rid, prompt, aborted):
        yield site.engine._chunk(request, rid, prompt, 0, 0, "half")
        await fake.asyncio.sleep(0.05)
        raise fake.Overloaded("it is full now")

    site.engine._chunks = breaks
    first, *comments, error, last = site.lines("/generate", {"text": "a", "stream": True})
    assert json.loads(first.removeprefix("data: "))["text"] == "half"
    assert set(comments) <= {": keep-alive"}
    assert json.loads(error.removeprefix("data: "))["error"] == {
        "message": "it is full now",
        "type": "Overloaded",
        "param": None,
        "code": 429,
    }
    assert last == "data: [DONE]"


# ---- streams and clients ----


def test_silence_is_filled(site):
    site.engine.hold()
    connection = open_request(site, {"text": "a", "stream": True})
    answer = connection.getresponse()
    assert answer.status == 200
    assert [answer.readline() for _ in range(4)] == [b": keep-alive\n", b"\n"] * 2
    site.on_loop(site.engine.release)
    assert answer.read().endswith(b"data: [DONE]\n\n")
    connection.close()


@pytest.mark.parametrize("body", [{"text": "a"}, {"text": ["a", "b", "c"]}])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 3])
def test_disconnect_aborts(site, body, stream, after):
    site.engine.hold(after)
    params = {"n": 2}
    connection = open_request(site, {**body, "stream": stream, "sampling_params": params})
    count = len(body["text"]) if isinstance(body["text"], list) else 1
    until(lambda: len(site.engine.running) == count)
    if stream:
        connection.getresponse().read(5)
    connection.close()
    until(lambda: not site.engine.running)
    assert len(site.engine.closed) == count


def test_client_that_does_not_read():
    """It holds up nobody, its backlog is bounded, and at last it is cut off."""
    with fake.served(
        fake.FakeEngine({"much": "abcdefgh" * 1000}, chars=8), client_timeout=0.5
    ) as site:
        body = {"text": "much", "stream": True, "sampling_params": {"max_new_tokens": None}}
        connection = open_request(site, body)
        until(lambda: site.engine.seen)
        assert site.post("/generate", {"text": "a"})["text"]
        # The engine is done with it although nobody has read; only then it is cut.
        until(lambda: not site.engine.running)
        assert not site.engine.closed
        time.sleep(1)
        answer = connection.getresponse()
        with pytest.raises(http.client.IncompleteRead):
            answer.read()
        connection.close()


def test_slow_client_gets_it_all(site):
    """Lines that it did not take in time are joined, and the last one has everything."""
    site.engine.chars = 1
    connection = open_request(
        site, {"text": "a", "stream": True, "sampling_params": {"max_new_tokens": 3000}}
    )
    time.sleep(0.3)
    lines = connection.getresponse().read().decode().split("\n\n")
    connection.close()
    assert lines[-2:] == ["data: [DONE]", ""]
    last = json.loads(lines[-3].removeprefix("data: "))
    assert last["text"] == fake.WORDS[:3000]
    assert len(last["output_ids"]) == 3000


# ---- abort ----


@pytest.mark.parametrize(
    ("body", "abort", "count"),
    [
        ({"text": "x", "rid": "a"}, {"rid": "a"}, 1),
        ({"text": ["x", "y"], "rid": "a"}, {"rid": "a"}, 2),
        ({"text": ["x", "y"], "rid": ["a", "ab"]}, {"rid": "a"}, 1),
        ({"text": ["x", "y"]}, {"abort_all": True}, 2),
    ],
)
def test_abort(site, body, abort, count):
    site.engine.hold(1)
    connection = open_request(site, {**body, "sampling_params": {"max_new_tokens": 9}})
    many = isinstance(body["text"], list)
    until(lambda: len(site.engine.running) == (2 if many else 1))
    assert site.post("/abort_request", abort) == {"aborted": count}
    until(lambda: len(site.engine.running) == (2 if many else 1) - count)
    site.on_loop(site.engine.release)
    answers = json.loads(connection.getresponse().read())
    connection.close()
    reasons = [a["meta_info"]["finish_reason"]["type"] for a in (answers if many else [answers])]
    assert sorted(reasons) == sorted(["abort"] * count + ["length"] * (len(reasons) - count))
    assert site.post("/abort_request", {"rid": "a"}) == {"aborted": 0}


def test_same_rid_twice(site):
    site.engine.hold()
    for body in ({"text": "x", "rid": "one"}, {"text": ["x"], "rid": "two"}):
        connection = open_request(site, body)
        until(lambda: site.engine.running)
        status, error = site.fail("/generate", body)
        assert status == 400
        assert "run" in error["message"]
        connection.close()
        until(lambda: not site.engine.running)
    site.engine.held = None
    site.post("/generate", {"text": "x", "rid": "one"})  # the id is free again


def test_wrong_aborts(site):
    for body in ({}, {"rid": 3}, {"rid": ""}, {"abort_all": "yes"}, {"abort_all": False}):
        assert site.fail("/abort_request", body)[0] == 400


# ---- what it says about itself ----


def test_health(site):
    assert site.call("/health")[0] == 200
    site.engine.healthy = False
    assert site.call("/health")[0] == 503


def test_ready(site):
    for path in ("/ready", "/health_generate"):
        assert site.call(path)[0] == 200
    assert site.engine.seen[-1].params.max_new_tokens == 1

    async def fails(*_):
        raise fake.Overloaded("no room")
        yield

    site.engine._chunks = fails
    status, _, answer = site.call("/ready")
    assert status == 503
    assert "no room" in answer["message"]


def test_probes_at_once_are_one(site):
    site.engine.hold()
    where = urlsplit(site.url)
    connections = []
    for _ in range(5):
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
        connection.request("GET", "/ready")
        connections.append(connection)
    until(lambda: site.engine.running)
    connections.pop().close()  # one who leaves takes nothing from the others
    time.sleep(0.05)
    assert len(site.engine.seen) == 1
    site.on_loop(site.engine.release)
    assert [c.getresponse().status for c in connections] == [200] * 4
    for connection in connections:
        connection.close()


def test_model_info(site):
    for path in ("/model_info", "/get_model_info"):
        status, _, info = site.call(path)
        assert status == 200
        assert info["model_path"] == "/models/fake"
        assert info["served_model_name"] == "fake"
        assert "identity" not in info  # that reads files, which not everybody needs
        assert site.call(f"{path}?identity=1")[2]["identity"] == "fake"
        assert site.call(f"{path}?identity=yes")[0] == 400
        assert site.call(f"{path}?identity=2")[0] == 400
    for path in ("/server_info", "/get_server_info"):
        assert site.call(path)[2]["stats"] == {"requests": 0}


def test_models():
    with fake.served(served_model_name="org/name") as site:
        (model,) = site.call("/v1/models")[2]["data"]
        assert (model["id"], model["object"], model["max_model_len"]) == ("org/name", "model", 4096)
        assert site.call("/v1/models/org/name")[2] == model
        status, error = site.fail("/v1/models/other", None)
        assert (status, error["code"]) == (404, "model_not_found")


def test_flush(site):
    for method in ("GET", "POST"):
        assert site.call("/flush_cache", method=method)[0] == 200
    assert site.engine.flushed == 2
    site.engine.hold()
    connection = open_request(site, {"text": "a"})
    until(lambda: site.engine.running)
    assert site.fail("/flush_cache", None)[0] == 400
    threading.Timer(0.1, site.on_loop, [site.engine.release]).start()
    assert site.call("/flush_cache?timeout=20")[0] == 200
    assert site.engine.flushed == 3
    connection.close()
    for given in ("soon", "nan", "inf"):
        status, error = site.fail(f"/flush_cache?timeout={given}", None)
        assert (status, error["param"]) == (400, "timeout")


def test_tree(site):
    shown = site.call("/tree?max_segments=1&max_tokens=3")[2]
    assert (len(shown["segments"]), shown["segments"][0]["tokens"]) == (1, [1, 1, 1])
    assert len(site.call("/tree")[2]["segments"]) == 3
    for wrong in ("x", "1.5", "inf"):
        assert site.fail(f"/tree?max_tokens={wrong}", None)[1]["param"] == "max_tokens"


def test_a_pin_lives_as_long_as_its_connection(site):
    connection = open_request(site, {"text": "a prompt", "seconds": 1000}, "/pin")
    until(lambda: site.engine.pinned == ["a prompt"])
    seen = b""
    while b'{"state":"held","tokens":8}' not in seen:
        seen += connection.sock.recv(1 << 16)
    connection.close()
    until(lambda: site.engine.pinned == [])
    states = site.stream("/pin", {"text": "a prompt", "seconds": 0.01})
    assert [state["state"] for state in states] == ["held", "expired"]


def test_a_pin_is_kept_alive_and_does_not_hold_up_the_servers_end():
    with fake.served(keep_alive=0.01, shutdown_timeout=30) as site:
        connection = open_request(site, {"text": "a prompt", "seconds": 1000}, "/pin")
        seen = b""
        while seen.count(b": keep-alive") < 3:
            seen += connection.sock.recv(1 << 16)
    while piece := connection.sock.recv(1 << 16):
        seen += piece
    assert b"data: [DONE]" in seen
    assert site.engine.pinned == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": "a"}, "body"),
        ({"text": "a", "seconds": 0}, "seconds"),
        ({"text": "a", "seconds": "9"}, "seconds"),
        ({"text": ["a", "b"], "seconds": 9}, "text"),
        ({"seconds": 9}, "text"),
        ({"text": "a", "seconds": 9, "minutes": 1}, "body"),
    ],
)
def test_a_wrong_pin(site, body, param):
    status, error = site.fail("/pin", body)
    assert (status, error["param"]) == (400, param)
    assert site.engine.pinned == []


def test_concate_and_append(site):
    assert site.post("/concate_and_append_request", {"src_rids": ["a"], "dst_rid": "b"}) == {}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/flush_cache", None),
        ("GET", "/flush_cache", None),
        ("GET", "/tree", None),
        ("GET", "/health", None),
        ("GET", "/ready", None),
        ("GET", "/health_generate", None),
        ("GET", "/model_info", None),
        ("GET", "/get_server_info", None),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/fake", None),
        ("POST", "/generate", {"text": "a"}),
        ("POST", "/encode", {"text": "a"}),
        ("POST", "/score", {"text": "a", "choices": ["b"]}),
        ("POST", "/pin", {"text": "a", "seconds": 1}),
        ("POST", "/abort_request", {"rid": "a"}),
        ("POST", "/v1/completions", {"prompt": "a"}),
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("POST", "/v1/embeddings", {"input": "a"}),
    ],
)
def test_a_key_of_the_query_that_is_not_known_is_refused(site, method, path, body):
    flushed = site.engine.flushed
    status, _, answer = site.call(f"{path}?tiemout=3", body, method=method)
    error = answer["error"]
    assert (status, error["param"]) == (400, "tiemout")
    assert error["message"].startswith("tiemout: unknown key in the query; ")
    assert site.engine.flushed == flushed
    assert site.call("/no/such/path?x=1")[0] == 404
