#!/usr/bin/env bash
# paths.sh [DOCUMENT…]: every file that the documents (all) and the comments of sources name must exist. Paths begin at the root, in
# bellows/ or in the document's folder; files and folders may stand as bare names: then they lie in the document's component, or in any.
set -euo pipefail
cd "$(dirname "$0")/../.."
(($#)) || set -- README.md */README.md bellows/*/README.md docs/*.md
bad=0 count=0

# exists PATH FOLDER
exists() {
  local name=${1%/} within=bellows
  [[ $2 != bellows/* ]] || within=$2
  [[ -e $1 || -e bellows/$1 || -e $2/$1 ]] || [[ $name != */* && -n $(find "$within" -name "$name" -print -quit) ]]
}

# named_in DOCUMENT: links, and what looks like a path; libtorch's own headers are none of ours.
named_in() {
  local file='[A-Za-z0-9_./-]+\.(h|cpp|cu|proto|py|sh|md)' rooted='(tests|bench|tools|script|docs|examples|cmake)/[A-Za-z0-9_./-]+'
  sed -E 's/\[`[^`]*`\]/]/g' "$1" | grep -oE "\`($file|[a-z_]+/|$rooted)\`" | tr -d '`' | grep -vE '^(torch|ATen|c10)/' || true
  grep -oE '\]\([A-Za-z0-9_./-]+\)' "$1" | tr -d ']()' || true
}

while IFS=: read -r file path; do
  count=$((count + 1))
  exists "$path" "$(dirname "$file")" || { echo "$file: there is no $path" >&2; bad=1; }
done < <(
  for document in "$@"; do named_in "$document" | sort -u | sed "s|^|$document:|"; done
  grep -roE '\b(tests|docs|bench|tools/goldens)/[A-Za-z0-9_/-]+\.(h|cpp|py|sh|md)\b' bellows cli --include='*.h' --include='*.cpp' | sort -u)
((count)) || { echo "found no path to check" >&2; bad=1; }
echo "$count paths"
exit $bad
