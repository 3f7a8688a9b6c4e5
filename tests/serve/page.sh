#!/usr/bin/env bash
# Uses the status page in headless Chromium: page.sh SERVER PYTHON SCRIPT CHROMIUM
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "browser:page-test-token-0123" >"$work/tokens"
coproc SERVER { "$1" --token-file "$work/tokens" --hostile-names; }
pid=$SERVER_PID
read -r port _ <&"${SERVER[0]}"
"$2" "$3" "$4" "$port" page-test-token-0123 "$work"
eval "exec ${SERVER[1]}>&-"
wait "$pid"
