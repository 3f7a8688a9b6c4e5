#!/usr/bin/env bash
# names.sh DOCUMENT…: every name of Bellows that a table of the documents promises must be in a public header, every recipe key
# in the recipe. Names stand as `bw::…` (last part is looked for) or `recipe: key`; the verbs of the command as `bellows verb`.
set -euo pipefail
cd "$(dirname "$0")/../.."
bad=0
miss() { echo "$1" >&2; bad=1; }

for document in "$@"; do
  count=0
  while read -r name; do
    count=$((count + 1))
    last=${name##*::}
    last=${last##*.}
    grep -rqE "\b$last\b" bellows --include='*.h' || miss "$document: $name is in no public header"
  done < <(grep -oE '`bw::[A-Za-z0-9_:.]+' "$document" | tr -d '`' | sort -u)
  while read -r key; do
    count=$((count + 1))
    grep -qE "\{\"$key\"," bellows/train/recipe/recipe_keys.cpp || miss "$document: the recipe has no key $key"
  done < <(grep -oE '`recipe: [a-z_]+' "$document" | sed 's/.* //' | sort -u)
  while read -r verb; do
    count=$((count + 1))
    grep -qF "add_subcommand(\"$verb\"" cli/verb_options.cpp || miss "$document: the command has no verb $verb"
  done < <(grep -oE '`bellows [a-z]+' "$document" | sed 's/.* //' | sort -u)
  ((count > 0)) || miss "$document: no names found"
  echo "$document: $count names"
done
exit $bad
