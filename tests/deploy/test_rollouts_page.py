"""The rows behind the page "Rollouts": chosen as asked, bounded, and one line where there are none."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hora_rl.common.live.state import changed
from hora_rl.deploy.monitor.web import create_app
from hora_rl.learner.rollout_writer import Texts
from tests.support.rollouts import write_rollouts
from tests.support.synthetic_run import SyntheticRun, config_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_rollouts(folder, "telemetry.rollouts_logprobs=true", steps=3, prompts=4)
    return folder


@pytest.fixture(scope="module")
def client(redis_url: str, run: Path) -> Iterator[TestClient]:
    with TestClient(create_app(redis_url, "r", folder=run), base_url="http://127.0.0.1") as client:
        yield client


def rows(client: TestClient, **query: Any) -> dict:
    answer = client.get("/rollouts/rows", params=query)
    assert answer.status_code == 200, answer.text
    found: dict = answer.json()
    return found


def test_rows_are_chosen_and_paged(client: TestClient) -> None:
    found = rows(client, limit=5)
    assert (found["steps"], found["first"], found["last"], found["more"]) == (3, 0, 2, True)
    assert found["rewards"] == ["format", "accuracy"]
    assert {r["step"] for r in found["rows"]} == {2}
    rest = rows(client, limit=100, offset=5)
    assert (len(rest["rows"]), rest["more"]) == (19, False)
    one = rows(client, prompt=1, success="false", order="oldest")["rows"]
    assert [(r["step"], r["prompt"], r["success"]) for r in one] == [(s, 1, False) for s in range(3)]
    assert "logprobs" not in one[0]
    assert rows(client, prompt=50)["rows"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=401", "step=-1", "order=best", "phase=C", "chars=1e9"])
def test_what_is_out_of_bounds_is_refused(client: TestClient, query: str) -> None:
    assert client.get(f"/rollouts/rows?{query}").status_code == 422


def test_long_texts_are_sent_without_their_middle(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "b" * 600 + "m" * 100_000 + "e" * 300
    monkeypatch.setattr(Texts, "completion", lambda self, rollout: text)
    write_rollouts(tmp_path, steps=1, prompts=1)
    with TestClient(create_app(redis_url, "r", folder=tmp_path), base_url="http://127.0.0.1") as client:
        row = rows(client, chars=900)["rows"][0]
        assert row["completion"] == "b" * 600 + "e" * 300
        assert row["left_out"] == {"completion": {"at": 600, "characters": 100_000}}
        assert rows(client, chars=1_000_000, limit=1)["rows"][0]["completion"] == text


def test_no_rollouts_and_a_step_that_was_not_trained_are_one_line_each(
    redis_url: str, client: TestClient, tmp_path: Path
) -> None:
    answer = client.get("/rollouts/rows?step=9")
    assert answer.status_code == 404
    assert "no rollouts of step 9" in answer.json()["detail"]
    with TestClient(create_app(redis_url, "r", folder=tmp_path), base_url="http://127.0.0.1") as other:
        assert "no rollouts here" in other.get("/rollouts/rows").json()["detail"]


def test_without_a_folder_the_one_that_the_learner_named_is_read(redis_url: str, run: Path) -> None:
    live = SyntheticRun(redis_url, config_of("live"))
    with TestClient(create_app(redis_url, "live"), base_url="http://127.0.0.1") as client:
        assert "runs/live" in client.get("/rollouts/rows").json()["detail"]
        live.redis.hset(live.keys.state, mapping=changed(folder=str(run)))
        assert rows(client)["folder"] == str(run)
