"""The embedded Redis keeps to its folder: it takes up after a killed launcher, and ends nobody else's server.
A machine's ports, and the token that guards its Ray."""

import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import redis

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.common.live.redis import connect
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.services import ray_token
from hora_rl.deploy.machine import ray_start
from hora_rl.deploy.machine.ray_start import check_port, free_port, keep_token_private, token_file
from hora_rl.deploy.machine.redis_server import RedisServer, executable
from tests.support.ports import until
from tests.support.small_disk import fill_up, small_disk

OWNER = """
import pathlib, sys, time
from hora_rl.deploy.machine.redis_server import RedisServer
server = RedisServer(pathlib.Path(sys.argv[1]))
server.start()
print(server.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.system
def test_a_server_ends_with_its_killed_launcher_and_its_data_is_found(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "redis")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server = psutil.Process(int(owner.stdout.readline()))
        connect((tmp_path / "redis" / "url").read_text()).set("key", "value")
        owner.kill()
    psutil.wait_procs([server], timeout=10)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    with RedisServer(tmp_path / "redis") as again:
        assert connect(again.url).get("key") == b"value"


def answers(url: str) -> bool:
    with suppress(RunError):
        return bool(connect(url).ping())
    return False


def test_a_server_that_is_left_on_our_files_is_ended_first(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as first:
        connect(first.url).set("key", "value")
    command = [executable(), str(tmp_path / "redis" / "redis.conf")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=tmp_path / "redis") as left:
        (tmp_path / "redis" / "pid").write_text(str(left.pid))
        until(lambda: answers(first.url))
        with RedisServer(tmp_path / "redis") as server:
            assert left.wait(10) == 0
            assert connect(server.url).get("key") == b"value"


def test_a_server_that_is_killed_comes_back_by_itself_with_all_that_it_confirmed(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        client, killed = connect(server.url), server.pid
        for i in range(200):
            client.rpush("list", i)
        os.kill(killed, signal.SIGKILL)
        client.rpush("list", 200)  # a client that was there before waits and goes on
        assert client.llen("list") == 201
        assert server.pid != killed
        last = server.pid
    assert not psutil.pid_exists(last)


def _write_on(client: redis.Redis) -> None:
    for _ in range(100):
        client.set("more", b"0" * 2**16)


@pytest.mark.system
def test_on_a_full_disk_the_server_says_so_once_and_comes_back_when_there_is_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", 100) as disk, RedisServer(disk / "redis") as server:
        client = connect(server.url)
        client.set("before", "kept")
        filler = fill_up(disk)
        impatient = connect(server.url, retries=0)
        with pytest.raises(redis.exceptions.RedisError):
            _write_on(impatient)
        time.sleep(3.0)
        output = capsys.readouterr().out
        assert output.count("is full: free 32 MiB, and the run continues") == 1
        assert len(output.splitlines()) <= 3, output
        filler.unlink()
        assert client.get("before") == b"kept", "clients wait meanwhile"


@pytest.mark.parametrize(("file", "torn"), [("pid", ""), ("pid", "12x"), ("password", "")])
def test_a_torn_file_is_no_obstacle(tmp_path: Path, file: str, torn: str) -> None:
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / file).write_text(torn)
    with RedisServer(tmp_path / "redis") as server:
        assert len((server.folder / "password").read_text()) > 30
        assert connect(server.url).ping()


def test_a_server_in_use_and_one_that_got_the_number_of_ours_are_left_alone(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "other") as other:
        (tmp_path / "redis").mkdir()
        (tmp_path / "redis" / "pid").write_text(str(other.pid))
        with RedisServer(tmp_path / "redis") as server:
            assert server.pid != other.pid
            assert connect(other.url).ping()
            with pytest.raises(RunError, match="redis"):
                RedisServer(tmp_path / "redis").start()
            assert connect(server.url).ping()


def test_password_and_address_are_its_owners_alone_and_no_port_is_open(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "redis") as server:
        for name in ("", "password", "redis.conf", "url", "redis.sock"):
            assert stat.S_IMODE((server.folder / name).stat().st_mode) & 0o077 == 0, name
        assert (server.folder / "password").read_text() not in server.url
        assert connect(server.url).config_get("port") == {"port": "0"}
        with pytest.raises(RunError):
            connect(server.url.split("?")[0])


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "appendonly.aof").write_text("this is no append-only file\n")
    with pytest.raises(RunError, match=r"redis\.log"):
        RedisServer(tmp_path / "redis").start()
    assert not (tmp_path / "redis" / "pid").exists()


@pytest.mark.parametrize("name", ['c++ & 50%25 "#1?"', "long" * 30])
def test_a_folder_of_any_name_will_do(tmp_path: Path, name: str) -> None:
    with RedisServer(tmp_path / name / "redis") as server:
        assert connect(server.url).ping()


def test_files_of_a_newer_redis_are_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "redis" / "appendonlydir").mkdir(parents=True)
    monkeypatch.setattr("hora_rl.deploy.machine.redis_server.version_of", lambda path: (6, 2))
    with pytest.raises(RunError, match="Redis 7"):
        RedisServer(tmp_path / "redis").start()


def test_hora_redis_says_how_to_reach_it_and_shows_its_password_to_nobody(tmp_path: Path) -> None:
    folder, port = tmp_path / "kept", free_port()
    command = [sys.executable, "-m", "hora_rl.deploy.cli", "redis", str(folder), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            name, _, url = process.stdout.readline().strip().removeprefix("export ").partition("=")
            assert name == "HORA_REDIS_URL"
            assert (folder / "url").read_text() == shlex.split(url)[0]
            client = connect(shlex.split(url)[0])
            as_serve_files_have_it = f"redis://127.0.0.1:{port}?password_file=~/kept/password"
            assert connect(as_serve_files_have_it).ping()
            assert client.config_get("appendfsync") == {"appendfsync": "always"}
            assert client.config_get("bind") == {"bind": "127.0.0.1"}
            with pytest.raises(RunError, match="password"):
                connect(f"redis://127.0.0.1:{port}")
            password = (folder / "password").read_text()
            shown = [" ".join(p.cmdline()) for p in psutil.Process(process.pid).children(recursive=True)]
            assert any("redis-server" in line for line in shown)
            assert not any(password in line for line in [*shown, url])
        finally:
            process.terminate()
        assert process.wait(20) == 0
    assert not (folder / "pid").exists()


TARGET = Target(Config.model_validate({"run": {"name": "r"}, "model": {"path": "m"}, "data": {"path": "d"}}))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_token_is_made_for_its_owner_alone_and_then_kept() -> None:
    keep_token_private(make=True)
    first = token_file().read_text()
    assert len(first) == 64
    assert mode(token_file()) == 0o600
    keep_token_private(make=True)
    assert token_file().read_text() == first
    assert [p.name for p in token_file().parent.iterdir()] == ["auth_token"]


def test_a_token_that_ray_left_open_is_closed_and_reported_before() -> None:
    token_file().parent.mkdir()
    token_file().write_text("a" * 64)
    token_file().chmod(0o644)
    (finding,) = ray_token(TARGET)
    assert (finding.level, "chmod 600" in finding.fix) == ("warn", True)
    keep_token_private()
    assert mode(token_file()) == 0o600
    assert token_file().read_text() == "a" * 64
    assert [f.level for f in ray_token(TARGET)] == ["ok"]


def test_runs_that_start_at_once_agree_on_one_token() -> None:
    def start(_: int) -> str:
        keep_token_private(make=True)
        return token_file().read_text()

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(start, range(20)))) == 1


@pytest.mark.parametrize(("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "a" * 64)])
def test_no_token_is_made_where_ray_has_none(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    keep_token_private(make=True)
    assert not token_file().exists()
    assert list(ray_token(TARGET)) == []


def test_a_free_port_is_not_one_the_kernel_gives_to_whoever_asks() -> None:
    lowest, highest = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if lowest < 32_768:
        pytest.skip("this kernel gives away lower ports than Linux does by default")
    assert not lowest <= free_port() <= highest


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_taken_port_is_not_offered(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port(host)
    with socket.create_server((host, free), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
        monkeypatch.setattr(ray_start, "CANDIDATES", [free])
        monkeypatch.setattr(ray_start.random, "sample", lambda candidates, _: candidates)
        with pytest.raises(RunError, match=f"{host}.*{free}"):
            free_port(host)
        with pytest.raises(RunError, match=f"{free}"):
            check_port(host, free)
