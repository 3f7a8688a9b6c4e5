#!/usr/bin/env bash
# Runs Triton's official client against the server with TLS and a token: tls_client.sh SERVER PYTHON SCRIPT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" "$3" make "$work"
coproc SERVER { "$1" --token-file "$work/tokens" --tls-certificate "$work/certificate.pem" --tls-key "$work/key.pem"; }
pid=$SERVER_PID
read -r port _ <&"${SERVER[0]}"
"$2" "$3" use "$work" "$port"
eval "exec ${SERVER[1]}>&-"
wait "$pid"
