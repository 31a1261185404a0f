"""Requests by plain HTTPS: in the caller's thread, on connections that are kept, within bounds of time and size."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from answering import answer, serving

from ejcache.bucket import https_client
from ejcache.bucket.https_client import HttpsClient
from ejcache.bucket.responses import AnswerError
from ejcache.bucket.retry import TransientError
from ejcache.errors import StoreUnavailableError
from ejcache.util.threads import submit


def send(client, method="GET", **more):
    options = {"headers": {}, "body": (), "seconds": 60.0, "body_seconds": 60.0, "most": 1 << 20}
    return client.send(method, "o/a%2Fb", {"alt": "media"}, **options | more)


@contextlib.contextmanager
def client_of(server, path=""):
    port = server if isinstance(server, int) else server.server_port
    client = HttpsClient(f"http://127.0.0.1:{port}{path}")
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def saying(talk):
    """A server that has `talk` deal with each connection, in a thread of its own; yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def meet(connection):
        with connection, contextlib.suppress(OSError):
            connection.settimeout(60)
            talk(connection)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=meet, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listening:
        yield listening.getsockname()[1]
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


def request_of(connection):
    """The header of a request; nothing once the client has closed the connection."""
    text = b""
    while b"\r\n\r\n" not in text:
        piece = connection.recv(65536)
        if not piece:
            return b""
        text += piece
    return text


def test_a_request_is_what_it_says():
    """Path, query, method, headers and body arrive; a path of the location comes first, and connections are kept."""
    seen = []

    def reply(request):
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        seen.append((request.command, request.path, request.headers["X-Own"], body, request.client_address))
        answer(request, b"body", {"X-Said": "so", "X-Twice": "a"})

    with serving(reply) as server, client_of(server, "/behind/") as client:
        for _ in range(2):
            found = send(client, headers={"X-Own": "mine"})
            assert (found.status, found.body, found.headers["x-said"]) == (200, b"body", "so")
        send(client, "POST", headers={"X-Own": "mine"}, body=(b"one", b"", b"two"))
        send(client, "POST", headers={"X-Own": "mine"})
    assert [path for _, path, *_ in seen] == ["/behind/o/a%2Fb?alt=media"] * 4
    assert [(method, body) for method, _, _, body, _ in seen] == [
        ("GET", b""), ("GET", b""), ("POST", b"onetwo"), ("POST", b"")
    ]  # fmt: skip
    assert {own for _, _, own, *_ in seen} == {"mine"}
    assert len({address for *_, address in seen}) == 1


def test_a_large_body_arrives():
    """More than the system takes at once, in both directions."""
    data = os.urandom(1 << 20) * 12

    def reply(request):
        answer(request, request.rfile.read(int(request.headers["Content-Length"])), {})

    with serving(reply) as server, client_of(server) as client:
        assert send(client, "POST", body=(data[:1000], data[1000:]), most=16 << 20).body == data


def test_only_a_connection_is_opened_elsewhere(monkeypatch):
    """A request on an open connection starts no thread, and waits for none."""
    opened = []

    def noted(function):
        opened.append(function)
        return submit(function)

    monkeypatch.setattr(https_client, "submit", noted)
    with serving(lambda request: answer(request, b"x", {})) as server, client_of(server) as client:
        for _ in range(5):
            send(client)
    assert len(opened) == 1


def test_requests_at_the_same_time():
    """Each has a connection of its own, and gets its own answer."""
    together = threading.Barrier(8)

    def reply(request):
        together.wait(60)
        answer(request, request.headers["X-Own"].encode(), {})

    with serving(reply) as server, client_of(server) as client, ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            found = list(pool.map(lambda n: send(client, headers={"X-Own": str(n)}).body, range(8)))
            assert found == [str(n).encode() for n in range(8)]


DRIPS = {
    "header": b"HTTP/1.1 200 OK\r\nX: ",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n186A0\r\n",
    "chunk size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    "body of an error": b"HTTP/1.1 503 No\r\nContent-Length: 100000\r\n\r\n",
}


@pytest.mark.parametrize("where", DRIPS)
def test_a_byte_at_a_time_is_given_up(where):
    """The deadline is of the whole answer, however often a byte comes; the connection is closed then."""
    closed, gate = threading.Event(), threading.Event()

    def drip(connection):
        request_of(connection)
        connection.sendall(DRIPS[where])
        with contextlib.suppress(OSError):
            while not gate.wait(0.01):
                connection.sendall(b"0" if where == "chunk size" else b"x")
        closed.set()

    with saying(drip) as port, client_of(port) as client:
        with pytest.raises(TransientError, match=r"no (full )?answer") as caught:
            send(client, seconds=0.3, body_seconds=0.3)
        has_begun = where in ("body", "chunks", "chunk size", "trailer")
        assert (caught.value.arriving, caught.value.busy, caught.value.ambiguous) == (has_begun, True, True)
        assert (caught.value.arrived > 0) == (where in ("body", "chunks", "body of an error"))
        assert closed.wait(60)
    gate.set()


def test_a_server_that_does_not_read_is_given_up():
    """The deadline holds while a request is sent, too."""
    gate = threading.Event()
    with saying(lambda connection: gate.wait(60)) as port, client_of(port) as client:
        with pytest.raises(TransientError, match=r"no answer for 0\.3 s"):
            send(client, "POST", body=(bytes(32 << 20),), seconds=0.3)
        gate.set()


def test_an_answer_that_arrives_has_its_own_time():
    """Its header must come in time, and its body may take as long as bodies may."""
    passed = threading.Event()

    def slow(connection):
        request_of(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nda")
        passed.wait(1.0)  # longer than the header may take
        connection.sendall(b"ta")

    with saying(slow) as port, client_of(port) as client:
        assert send(client, seconds=0.5, body_seconds=60.0).body == b"data"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
    ids=["nothing", "nonsense", "short", "short chunk", "odd chunk", "headers", "long header"],
)
def test_a_connection_that_breaks(said):
    """A broken answer is one error, which says that the request may have been carried out; the next one is whole."""
    answers = [said, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]

    def talk(connection):
        while request_of(connection):
            answer = answers.pop(0)  # before the client can ask another connection for the next one
            connection.sendall(answer)
            if answer == said:
                return

    with saying(talk) as port, client_of(port) as client:
        with pytest.raises(TransientError, match="the connection broke") as caught:
            send(client)
        assert (caught.value.ambiguous, caught.value.unreachable) == (True, False)
        assert send(client).body == b"ok"


@pytest.mark.parametrize(
    ("said", "most", "wrong"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + bytes(101), 100, "more than 100 bytes"),
        (b"HTTP/1.1 302 Away\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", 100, "redirect to /login"),
        (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n", 100, "encoded"),
    ],
)
def test_an_answer_out_of_bounds(said, most, wrong):
    """It is no answer of a storage, and nothing more is asked on its connection."""
    ended = threading.Event()

    def talk(connection):
        request_of(connection)
        connection.sendall(said)
        if not request_of(connection):
            ended.set()

    with saying(talk) as port, client_of(port) as client:
        with pytest.raises(AnswerError, match=wrong):
            send(client, most=most)
        assert ended.wait(60)


@pytest.mark.parametrize("meanwhile", [lambda server: server.close(), lambda server: server.sendall(b"HTTP/1.1 200")])
def test_a_connection_that_the_server_ends(meanwhile):
    """One that was closed while nobody used it, or that has said something unasked, is not used again."""
    mine, theirs = socket.socketpair()
    connection = https_client.Connection(mine)
    connection.rest()
    assert connection.is_usable is True
    meanwhile(theirs)
    assert connection.is_usable is False
    connection.close()
    assert connection.is_usable is False
    theirs.close()


def test_a_connection_is_not_kept_for_ever(monkeypatch):
    """A firewall may have forgotten it."""
    addresses = set()

    def reply(request):
        addresses.add(request.client_address)
        answer(request, b"x", {})

    with serving(reply) as server, client_of(server) as client:
        send(client)
        monkeypatch.setattr(https_client, "_IDLE", 0.0)
        send(client)
    assert len(addresses) == 2


def test_an_interrupt_leaves_no_half_answer():
    """Ctrl-C during a request closes its connection; the next request gets its own answer."""
    # A shell starts what runs in the background with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun, other = threading.Event(), threading.Event()

    def reply(request):
        if not begun.is_set():
            begun.set()
            other.wait(60)
        answer(request, request.headers["X-Own"].encode(), {})

    def interrupt():
        begun.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    try:
        with serving(reply) as server, client_of(server) as client:
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                send(client, headers={"X-Own": "first"})
            other.set()
            assert send(client, headers={"X-Own": "second"}).body == b"second"
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_opens_late_is_for_the_next_request(monkeypatch):
    """A name that takes long is not waited for, and its connection is there for whoever asks next."""
    gate, connect = threading.Event(), socket.create_connection

    def slowly(*arguments):
        assert gate.wait(60)
        return connect(*arguments)

    with serving(lambda request: answer(request, b"x", {})) as server, client_of(server) as client:
        monkeypatch.setattr(socket, "create_connection", slowly)
        opened, kept = [], threading.Event()
        monkeypatch.setattr(https_client, "submit", lambda function: opened.append(submit(function)) or opened[0])
        with pytest.raises(TransientError, match=r"no answer for 0\.05 s"):
            send(client, seconds=0.05)
        opened[0].add_done_callback(lambda _: kept.set())  # after what the client has added
        gate.set()
        assert kept.wait(60)
        assert send(client).body == b"x"
        assert len(opened) == 1


def test_nobody_there():
    """A refused connection, and a name without an address, are known as what is not waited for, with the address."""
    for location, asked in (
        ("http://127.0.0.1:1", "127.0.0.1:1: "),
        ("http://[::1]:1", "[::1]:1: "),
        ("http://no-such-host.invalid", "no-such-host.invalid:80: "),
    ):
        with pytest.raises(TransientError) as caught:
            send(HttpsClient(location))
        assert caught.value.unreachable is True
        assert str(caught.value).startswith(asked)


@pytest.mark.parametrize("host", ["a..b", "x" * 64 + ".org"])
def test_a_name_that_no_host_has(host):
    """It is one sentence."""
    with pytest.raises(StoreUnavailableError, match="no host has this name"):
        send(HttpsClient(f"http://{host}"))


@pytest.mark.parametrize("token", ["x\r\nX-Other: y", "x\nX-Other: y", "ü"])
def test_a_header_of_two_lines_is_not_sent(token):
    """What a token or an address has in it makes no second header, and no other error than ours."""
    with (
        serving(lambda request: pytest.fail("it was sent")) as server,
        client_of(server) as client,
        pytest.raises(StoreUnavailableError, match="not one line of plain text"),
    ):
        send(client, headers={"Authorization": f"Bearer {token}"})


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """A context of a server named `localhost`, which this process trusts."""
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return context


@contextlib.contextmanager
def serving_tls(reply, context):
    with serving(reply) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        yield server.server_port


def test_tls(certificate):
    """The server is known by its certificate, for its name alone; connections are kept, and large bodies arrive."""
    data, addresses = os.urandom(3 << 20), set()

    def reply(request):
        addresses.add(request.client_address)
        answer(request, request.rfile.read(int(request.headers["Content-Length"])), {})

    with serving_tls(reply, certificate) as port:
        client = HttpsClient(f"https://localhost:{port}")
        for _ in range(3):
            assert send(client, "POST", body=(data,), most=4 << 20).body == data
        client.close()
        assert len(addresses) == 1
        other = HttpsClient(f"https://127.0.0.1:{port}")
        with pytest.raises(StoreUnavailableError, match="certificate"):
            send(other)


def test_a_byte_at_a_time_through_tls(certificate):
    """The deadline of the whole answer holds there, too."""
    gate = threading.Event()

    def drip(request):
        request.send_response(200)
        request.send_header("Content-Length", "100000")
        request.end_headers()
        while not gate.wait(0.01):
            request.wfile.write(b"x")

    with serving_tls(drip, certificate) as port:
        with pytest.raises(TransientError, match="no full answer") as caught:
            send(HttpsClient(f"https://localhost:{port}"), seconds=2.0, body_seconds=0.3)
        assert caught.value.arrived > 0
        gate.set()


def test_an_untrusted_server():
    """A server without TLS behind https:// is one error, not a connection that breaks again and again."""
    with (
        serving(lambda request: answer(request, b"x", {})) as server,
        pytest.raises(StoreUnavailableError),
    ):
        send(HttpsClient(f"https://127.0.0.1:{server.server_port}"))
