"""A password in an address is never shown, however badly it is written."""

import pytest

from hora_rl.common.errors import ConfigError
from hora_rl.common.live.redis import connect, hidden


@pytest.mark.parametrize("password", ["12/ss", "pa#ss", "a?b", "a@b", "abc/def", "plain", "p%40ss"])
def test_what_is_shown_has_no_password(password: str) -> None:
    assert hidden(f"redis://:{password}@host:6379/0?x=1") == "redis://host:6379/0"
    assert hidden(f"rediss://user:{password}@host:6379") == "rediss://host:6379"


@pytest.mark.parametrize("password", ["12/ss", "pa#ss", "a?b", "abc/def"])
def test_a_password_that_must_be_encoded_is_one_line_without_it(password: str) -> None:
    with pytest.raises(ConfigError, match=r"queue\.url \(redis://host:6379\) cannot be read:") as said:
        connect(f"redis://:{password}@host:6379")
    assert password not in str(said.value)
