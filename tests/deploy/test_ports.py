import socket
from pathlib import Path

import pytest

from hora_rl.common.errors import RunError
from hora_rl.deploy.machine import ports
from hora_rl.deploy.machine.ports import check_port, free_port


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
