#!/usr/bin/env bash
# Checks the files in deploy/: deploy.sh BELLOWS PYTHON SCRIPT
set -euo pipefail
exec "$2" "$3" "$(dirname "$0")/../../deploy" "$1"
