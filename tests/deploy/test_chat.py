"""`hora chat` asks the policy as training did, with the key that the endpoint wants."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import RunError
from common.load import dump_yaml, load
from deploy.launch import chat
from deploy.launch.serving import Served


@pytest.fixture(autouse=True)
def without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORA_TOKEN", raising=False)


def messages_of_a_talk(run: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """What the endpoint is asked when a person says two things, to which the policy answers `no`."""
    said, asked = iter(["1+1=?", "why?", ""]), []

    def streamed(_: Served, messages: list[dict[str, str]], temperature: float) -> Iterator[str]:
        asked.append([*messages])
        yield "no"

    monkeypatch.setattr(chat, "_asked", lambda _: next(said))
    monkeypatch.setattr(chat, "streamed", streamed)
    chat.chat_with_run(run, None, "http://127.0.0.1:1/v1", 1.0)
    return asked


@pytest.mark.parametrize("system", ["Answer in tags.", None])
def test_a_talk_begins_with_the_runs_system_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str | None
) -> None:
    config = load("tiny", [f"data.system={system or 'null'}"])
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    first = [{"role": "system", "content": system}] if system else []
    question = {"role": "user", "content": "1+1=?"}
    later = [{"role": "assistant", "content": "no"}, {"role": "user", "content": "why?"}]
    expected = [[*first, question], [*first, question, *later]]
    assert messages_of_a_talk(tmp_path, monkeypatch) == expected


def test_the_key_is_hora_token_where_the_replicas_have_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served("http://127.0.0.1:1", "", tmp_path / "token")
    with pytest.raises(RunError, match="there is no key: on a cluster it is HORA_TOKEN of the replicas"):
        _ = served.key
    (tmp_path / "token").write_text("of the run\n")
    assert served.key == "of the run"
    monkeypatch.setenv("HORA_TOKEN", "of the server")
    assert served.key == "of the server"
