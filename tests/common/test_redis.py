"""Whoever is started again while Redis is waits for it; whoever gave a wrong address is told at once."""

import threading
import time
from urllib.parse import quote_plus

import pytest

from hora_rl.common.errors import ConfigError, RunError
from hora_rl.common.live.redis import connect, hidden
from hora_rl.common.live.state import changed
from hora_rl.deploy.machine.redis_server import RedisServer


def test_a_patient_client_waits_for_a_redis_that_is_started_again(tmp_path):
    with RedisServer(tmp_path) as server:
        url = server.url
    again = RedisServer(tmp_path)
    began = time.monotonic()
    with pytest.raises(RunError, match="no Redis answers"):
        connect(url)
    assert time.monotonic() - began < 1.0
    later = threading.Timer(0.3, again.start)
    later.start()
    try:
        assert connect(url, patient=True).ping()
    finally:
        later.join()
        again.stop()


def test_patience_does_not_help_a_wrong_password(tmp_path):
    with RedisServer(tmp_path) as server:
        wrong = tmp_path / "guessed"
        wrong.write_text("guessed")
        began = time.monotonic()
        with pytest.raises(RunError, match="refuses the password") as said:
            connect(server.url.replace(quote_plus(str(tmp_path / "password")), str(wrong)), patient=True)
    assert time.monotonic() - began < 5.0
    assert "guessed" not in str(said.value)


@pytest.mark.parametrize("password", ["12/ss", "pa#ss", "a?b", "a@b", "abc/def", "plain", "p%40ss"])
def test_what_is_shown_of_an_address_has_no_password(password):
    assert hidden(f"redis://:{password}@host:6379/0?x=1") == "redis://host:6379/0"
    assert hidden(f"rediss://user:{password}@host:6379") == "rediss://host:6379"
    if set("/#?") & set(password):
        with pytest.raises(ConfigError, match=r"queue\.url \(redis://host:6379\) cannot be read:") as said:
            connect(f"redis://:{password}@host:6379")
        assert password not in str(said.value)


@pytest.mark.parametrize("field", ["steps", "version", "prompts"])
def test_the_shared_state_takes_no_unknown_field_and_none_that_scripts_write(field):
    with pytest.raises(TypeError, match=field):
        changed(**{field: 1})
