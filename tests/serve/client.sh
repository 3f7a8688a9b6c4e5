#!/usr/bin/env bash
# Runs Triton's official client against the server: client.sh SERVER PYTHON SCRIPT
set -euo pipefail
coproc SERVER { "$1"; }
pid=$SERVER_PID
read -r port grpc_port <&"${SERVER[0]}"
"$2" "$3" "$port" "$grpc_port"
eval "exec ${SERVER[1]}>&-"
wait "$pid"
