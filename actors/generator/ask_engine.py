"""Ask vLLM whether it takes the model and the arguments of a configuration, without loading weights.

`deploy/checks/engine.py` runs this as a module, so that vLLM's import stays outside the command. Reads a
dumped `Config` as JSON from stdin. Writes one line of JSON: `takes`, the class that would run the model;
`refuses`, vLLM's reason; or `wrong`, HORA's own error."""

import json
import os
import signal
import sys
import traceback

from hora_rl.common.errors import HoraError, any_error_as, root_cause
from hora_rl.common.processes import die_with_parent


class _Refused(Exception):
    pass


def main() -> None:
    die_with_parent(signal.SIGKILL, int(sys.argv[1]))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # vLLM logs to standard output
        try:
            answer = {"takes": _class_of(json.load(sys.stdin))}
        except _Refused as refused:
            answer = {"refuses": str(refused)}
        except HoraError as error:
            answer = {"wrong": str(error)}
        out.write(json.dumps(answer) + "\n")
    os._exit(0)  # vLLM and torch take a second to end


def _class_of(dumped: object) -> str:
    def refused(_: str) -> Exception:
        reason = root_cause(traceback.format_exc())
        _try_class(reason)
        return _Refused(reason)

    with any_error_as(refused, but=HoraError):  # vLLM, transformers and a model's own code raise anything
        from vllm.model_executor.model_loader import get_model_architecture

        from hora_rl.actors.generator.engine_args import engine_args, set_environment
        from hora_rl.common.config import Config

        config = Config.model_validate(dumped)
        set_environment(config.generator)
        _, name = get_model_architecture(engine_args(config).create_engine_config().model_config)
        return name


def _try_class(reason: str) -> None:
    """Raise _Refused if the class that `reason` names cannot be imported. vLLM only logs why, for pages."""
    from vllm.model_executor.models import ModelRegistry

    for name, model in ModelRegistry.models.items():
        if "to be inspected" in reason and f"'{name}'" in reason:

            def broken(_: str, name: str = name) -> Exception:
                why = root_cause(traceback.format_exc(chain=False))
                return _Refused(f"its class {name} cannot be imported here: {why}")

            with any_error_as(broken):  # importing a module may raise anything
                model.load_model_cls()


if __name__ == "__main__":
    main()
