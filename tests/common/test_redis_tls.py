"""Redis with a password and TLS: used when the address says so, refused in one line when a part of it is
wrong."""

import asyncio
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect, connect_async
from hora_rl.deploy.machine.redis_server import RedisServer


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return folder / "cert.pem", folder / "key.pem"


class TlsFront:
    """TLS on a free loopback port in front of the Unix socket of a real Redis, as a TLS terminator stands
    before one."""

    def __init__(self, socket: str, cert: Path, key: Path) -> None:
        self._socket, self._context = socket, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(cert, key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> int:
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context), self._loop
        )
        self._server = started.result(10)
        return int(self._server.sockets[0].getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_unix_connection(self._socket)
        await asyncio.gather(self._copy(reader, back_writer), self._copy(back_reader, writer))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()


@pytest.fixture
def address(tmp_path: Path, redis_server: RedisServer) -> Iterator[str]:
    """A rediss:// address without its query: password in it, certificate in tmp_path/tls/cert.pem."""
    cert, key = certificate(tmp_path / "tls")
    password = (redis_server.folder / "password").read_text().strip()
    with TlsFront(urlsplit(redis_server.url).path, cert, key) as port:
        yield f"rediss://:{password}@127.0.0.1:{port}"


def test_both_clients_speak_tls_and_give_the_password(address: str, tmp_path: Path) -> None:
    url = f"{address}?ssl_ca_certs={tmp_path / 'tls' / 'cert.pem'}"
    connect(url).set("key", "value")

    async def read() -> bytes:
        client = connect_async(url)
        found: bytes = await client.get("key")
        await client.aclose()
        return found

    assert asyncio.run(read()) == b"value"


def test_a_certificate_that_nobody_vouches_for_is_refused(address: str) -> None:
    with pytest.raises(RunError, match=r"no Redis answers at rediss://127\.0\.0\.1.*certificate verify"):
        connect(address)
