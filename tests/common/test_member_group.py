"""A Gloo group over two machines whose names are loopback addresses, as on Debian and Ubuntu."""

import socket
from pathlib import Path

import psutil
import pytest

from tests.support.machines import private_network, why_not

pytestmark = pytest.mark.system  # torch takes seconds to import

MEMBER = """
import socket, sys
from datetime import timedelta
import torch
from torch.distributed import TCPStore
from hora_rl.common.weights.member_group import member_group
assert socket.gethostbyname(socket.gethostname()) == "127.0.1.1"
rank, limit = int(sys.argv[1]), timedelta(seconds=60)
store = TCPStore("10.0.0.1", 7000, is_master=rank == 0, timeout=limit, wait_for_workers=False)
group = member_group("gloo", store, rank, 2, limit, limit, "10.0.0.1")
sent = torch.full((3,), 5.0 - rank)
group.broadcast(sent, 0).wait()
print(sent.tolist(), flush=True)
group.allreduce([sent]).wait()
"""


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_members_on_two_machines_meet_where_host_names_are_loopback_addresses(tmp_path: Path) -> None:
    with private_network(tmp_path, ("head", "other"), PYTHONPATH=str(Path(__file__).parents[2])) as machines:
        script = tmp_path / "member.py"
        script.write_text(MEMBER)
        members = [m.begin(f"python {script} {rank}", "log") for rank, m in enumerate(machines)]
        psutil.wait_procs(members, timeout=200)
        assert [m.name for m in machines if "[5.0, 5.0, 5.0]" not in m.said("log")] == []


def test_a_member_listens_where_packets_to_the_others_leave() -> None:
    from hora_rl.common.weights.member_group import address_towards

    assert address_towards("127.0.0.1") == "127.0.0.1"
    if socket.has_ipv6:
        assert address_towards("::1") == "::1"
