"""A machine's ports, and the token that guards its Ray."""

import socket
import stat
import threading
from pathlib import Path

import pytest

from hora_rl.common.config import Config
from hora_rl.common.errors import RunError
from hora_rl.deploy.checks.findings import Target
from hora_rl.deploy.checks.services import ray_token
from hora_rl.deploy.machine import ports
from hora_rl.deploy.machine.ports import check_port, free_port
from hora_rl.deploy.machine.ray_token import keep_token_private, token_file

TARGET = Target(Config.model_validate({"run": {"name": "r"}, "model": {"path": "m"}, "data": {"path": "d"}}))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


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
    (found,) = ray_token(TARGET)
    assert (found.level, "chmod 600" in found.fix) == ("warn", True)
    keep_token_private()
    assert mode(token_file()) == 0o600
    assert token_file().read_text() == "a" * 64
    assert [f.level for f in ray_token(TARGET)] == ["ok"]


def test_runs_that_start_at_once_agree_on_one_token() -> None:
    seen: list[str] = []

    def start() -> None:
        keep_token_private(make=True)
        seen.append(token_file().read_text())

    threads = [threading.Thread(target=start) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 1


@pytest.mark.parametrize(("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "a" * 64)])
def test_no_token_is_made_where_ray_would_make_none(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
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
        monkeypatch.setattr(ports, "CANDIDATES", [free])
        monkeypatch.setattr(ports.random, "sample", lambda candidates, _: candidates)
        with pytest.raises(RunError, match=f"no port of {host} from {free} to {free} can be used"):
            free_port(host)
        with pytest.raises(RunError, match=rf"{free} cannot be used \(Address already in use\)"):
            check_port(host, free)
