"""Serve deployment `ingress`: the page and endpoints of `deploy.monitor.web`, and Prometheus metrics."""

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from hora_rl.common.config import Config
from hora_rl.deploy.monitor.prometheus import Exporter
from hora_rl.deploy.monitor.web import create_app


@serve.ingress()
class Ingress:
    """`config` is a dumped `Config`. `coordinator` only makes the other deployments part of the application.
    All data come from Redis, so the page works while other parts are down."""

    def __init__(
        self, config: dict[str, object], redis_url: str, coordinator: DeploymentHandle | None = None
    ) -> None:
        checked = Config.model_validate(config)
        self._run, self._redis_url = checked.run.name, redis_url
        self._names = (checked.telemetry.http_host, *checked.telemetry.http_names)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return create_app(self._redis_url, self._run, observer=Exporter(), names=self._names)
