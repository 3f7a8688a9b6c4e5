# Derives the include graph of the components and reports includes that point up or sideways, and any of bench/ or tests/: `file:line: what, expected`.
# First file: bellows/components.txt, lines `level component`. Then the sources.

FNR == NR {
  if ($1 ~ /^[0-9]+$/) level[$2] = $1
  next
}
FNR == 1 { component = component_of(FILENAME) }
component && /^[ \t]*#[ \t]*include[ \t]*["<](bench|tests)\// {
  printf "%s:%d: includes a file of bench/ or tests/, expected only the library and the command\n", FILENAME, FNR
}
component && /^[ \t]*#[ \t]*include[ \t]*["<](bellows|cli)\// {
  split($0, part, /["<>]/)
  used = component_of(part[2])
  if (used == "" || used == component) next
  if (!(used in level)) printf "%s:%d: includes %s, a component that bellows/components.txt does not list\n", FILENAME, FNR, part[2]
  else if (level[used] >= level[component])
    printf "%s:%d: component %s (level %d) includes %s (level %d), expected only lower levels\n", FILENAME, FNR, component, level[component], part[2], level[used]
}

# bellows/io/archives/tar.h and bellows/io.h belong to io, cli/main.cpp to cli; bellows/bellows.h and the tests to none.
function component_of(path,   part) {
  split(path, part, "/")
  if (part[1] == "cli") return "cli"
  if (part[1] != "bellows") return ""
  sub(/\.h$/, "", part[2])
  return part[2] == "bellows" ? "" : part[2]
}
