"""Who waits for a Redis and who is told at once that it cannot be reached; passwords and TLS."""

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote_plus, urlsplit

import pytest
from ray._common.tls_utils import generate_self_signed_tls_certs

from hora_rl.common.config import GeneratorConfig
from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.redis import connect, connect_async, hidden
from hora_rl.common.live.state import changed
from hora_rl.deploy.machine.redis_server import RedisServer


def test_a_patient_client_waits_for_a_redis_that_is_started_again(tmp_path):
    with RedisServer(tmp_path) as server:
        url = server.url
    again = RedisServer(tmp_path)
    began = time.monotonic()
    with pytest.raises(RunError, match=r"redis\.sock"):
        connect(url)
    assert time.monotonic() - began < 1.0
    later = threading.Timer(0.3, again.start)
    later.start()
    try:
        assert connect(url, patient=True).ping()
    finally:
        later.join()
        again.stop()


async def test_as_many_commands_as_a_replica_has_requests_may_run_at_once(redis_url: str) -> None:
    async with connect_async(redis_url) as client:
        answers = await asyncio.gather(*(client.get("k") for _ in range(GeneratorConfig().max_requests)))
    assert set(answers) == {None}


def test_patience_does_not_help_a_wrong_password(tmp_path):
    with RedisServer(tmp_path) as server:
        wrong = tmp_path / "guessed"
        wrong.write_text("guessed")
        began = time.monotonic()
        with pytest.raises(RunError, match=r"queue\.url") as said:
            connect(server.url.replace(quote_plus(str(tmp_path / "password")), str(wrong)), patient=True)
    assert time.monotonic() - began < 5.0
    assert "guessed" not in str(said.value)


@pytest.mark.parametrize("password", ["12/ss", "pa#ss", "a?b", "a@b", "a[b", "abc/def", "plain", "p%40ss"])
def test_what_is_shown_of_an_address_has_no_password(password):
    assert hidden(f"redis://:{password}@host:6379/0?x=1") == "redis://host:6379/0"
    assert hidden(f"redis://host:6379/0?password={password}") == "redis://host:6379/0"
    assert hidden(f"rediss://user:{password}@host:6379") == "rediss://host:6379"
    if set("/#?[") & set(password):
        with pytest.raises(ConfigError, match=r"queue\.url \(redis://host:6379\)") as said:
            connect(f"redis://:{password}@host:6379")
        assert password not in str(said.value)


@pytest.mark.parametrize("query", ["pasword_file=/x", "db=first"])
def test_an_option_that_redis_does_not_know_is_one_line(query):
    with pytest.raises(ConfigError, match=query.partition("=")[0]):
        connect(f"redis://:hush@host?{query}")


@pytest.mark.parametrize("field", ["steps", "version", "prompts"])
def test_the_shared_state_takes_no_unknown_field_and_none_that_scripts_write(field):
    with pytest.raises(TypeError, match=field):
        changed(**{field: 1})


async def copied(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    sink.close()


@pytest.fixture
async def address(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[str]:
    """A rediss:// address without its query: password in it, certificate in tmp_path/cert.pem. It is of a TLS
    terminator on a free loopback port, before the Unix socket of a real Redis."""
    password = (redis_server.folder / "password").read_text().strip()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, text in zip(("cert.pem", "key.pem"), generate_self_signed_tls_certs(), strict=True):
        (tmp_path / name).write_text(text)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, out = await asyncio.open_unix_connection(urlsplit(redis_server.url).path)
        await asyncio.gather(copied(reader, out), copied(back, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield f"rediss://:{password}@localhost:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_both_clients_speak_tls_give_the_password_and_refuse_a_certificate_that_nobody_vouches_for(
    address: str, tmp_path: Path
) -> None:
    url = f"{address}?ssl_ca_certs={tmp_path / 'cert.pem'}"
    await asyncio.to_thread(lambda: connect(url).set("key", "value"))
    async with connect_async(url) as client:
        assert await client.get("key") == b"value"
    with pytest.raises(RunError, match=r"rediss://localhost.*certificate verify"):
        await asyncio.to_thread(connect, address)
