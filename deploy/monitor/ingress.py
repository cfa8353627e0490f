"""Serve deployment `ingress`: the page and the endpoints of `deploy.monitor.web` at the application's root,
and Prometheus."""

from __future__ import annotations

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from hora_rl.common.config import Config
from hora_rl.deploy.monitor.prometheus import Exporter
from hora_rl.deploy.monitor.web import create_app


@serve.ingress()
class Ingress:
    """`config` is a dumped `Config`. `coordinator` makes the rest of the application part of this one; it is
    not called, for everything shown here comes from Redis and stays readable while the others are down."""

    def __init__(
        self, config: dict[str, object], redis_url: str, coordinator: DeploymentHandle | None = None
    ) -> None:
        checked = Config.model_validate(config)
        self._run, self._redis_url = checked.run.name, redis_url
        self._names = (checked.telemetry.http_host, *checked.telemetry.http_names)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._redis_url, self._run, observer=Exporter(), names=self._names)
