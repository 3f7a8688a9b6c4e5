#!/usr/bin/env bash
# recipe_keys.sh DOCUMENT: its tables `| key | values | default | meaning |` must list every recipe key with the choices of the
# table in recipe_keys.cpp and the default of the member in recipe.h.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=bellows/train/recipe

# Lines `key=default` of the struct, and `key:choices` of the table (nothing after the colon for numbers and free text).
defaults=$(sed -n '/^struct Recipe {/,/^  static/p' "$folder/recipe.h" |
  sed -nE 's/^  (std::string|int64_t|double|bool) ([a-z_]+)( = "?([^";]*)"?)?;.*/\2=\4/p')
choices=$(tr -s '\n ' ' ' <"$folder/recipe_keys.cpp" | grep -oE '\{"[a-z_]+", &Recipe::[a-z_]+, ("[^"]*"|\{)' |
  sed -E 's/^\{"([a-z_]+)", [^,]*, "?([^"{]*).*/\1:\2/')

awk -v document="$1" '
  function miss(text) { print document ": " text > "/dev/stderr"; bad = 1 }
  function same(a, b) { return a == b || (a ~ /^[-0-9.e]+$/ && b ~ /^[-0-9.e]+$/ && a + 0 == b + 0) }
  FILENAME != document { if (split($0, part, /[=:]/) && /^[a-z_]+=/) expected[part[1]] = part[2]; else choice[part[1]] = part[2]; next }
  /^\| `[a-z_]+` \|/ {
    split($0, cell, / *\| */)
    gsub(/`/, "", cell[2]); gsub(/`/, "", cell[3]); gsub(/`/, "", cell[4])
    if (!(cell[2] in choice)) { miss("the recipe has no key " cell[2]); next }
    if (cell[2] in seen) miss("lists " cell[2] " twice")
    seen[cell[2]] = 1
    if (cell[4] == "empty") cell[4] = ""
    if (!same(cell[4], expected[cell[2]])) miss(cell[2] " has the default \"" cell[4] "\", expected \"" expected[cell[2]] "\"")
    if (choice[cell[2]] != "" && cell[3] != choice[cell[2]]) miss(cell[2] " has the values " cell[3] ", expected " choice[cell[2]])
  }
  END {
    for (key in choice) { count++; if (!(key in seen)) miss("does not list the key " key) }
    if (count < 60) miss("found only " count + 0 " keys in the code")
    print document ": " count " keys"
    exit bad
  }' <(printf '%s\n' "$defaults") <(printf '%s\n' "$choices") "$1"
