#!/usr/bin/env bash
# The learner as a job of a Ray cluster on which `serve deploy CONFIG` runs the actors:
#
#   examples/launch/ray-job.sh deploy/hora.yaml           from the checkout, which the head node has at the same path
#
# `ray job stop ID` stops it in order, and the same command again resumes it. Ray kills a job three seconds after its signal
# unless RAY_JOB_STOP_WAIT_TIME_S says otherwise; hora needs up to 30. The dashboard's address is RAY_API_SERVER_ADDRESS.
set -euo pipefail
config=$(realpath "${1:?usage: ray-job.sh CONFIG [-s KEY=VALUE…]}")
shift
hora=$(realpath "${HORA:-.venv/bin/hora}")
exec "${RAY:-.venv/bin/ray}" job submit --no-wait \
  --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "60"}}' \
  -- "$hora" train "$config" "$@"
