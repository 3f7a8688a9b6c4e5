# Prints the sources whose locks must be checked again, because they include a changed header with annotations of bellows/core/mutex.h, directly or
# through other headers with annotations. Guarded members are private, so sources that use them include their header.
# With -v headers=1, prints all headers that include a changed header, and the changed headers.
# First file: the changed files, one a line. Then all sources.

FILENAME == ARGV[1] {
  changed[$1] = 1
  next
}
/^[ \t]*#[ \t]*include[ \t]*"(bellows|cli)\// {
  split($0, part, "\"")
  includers[part[2]] = includers[part[2]] " " FILENAME
}
/BELLOWS_[A-Z_]*(GUARDED_BY|REQUIRES|EXCLUDES|ACQUIRE|RELEASE|CAPABILITY)/ { annotated[FILENAME] = 1 }
END {
  for (file in changed) visit(file)
  for (file in seen)
    if (headers ? file ~ /^bellows\/.*\.h$/ : file ~ /^(bellows|cli)\/.*\.cpp$/) print file
}

function visit(file,   list, count, i) {
  if (file in seen) return
  seen[file] = 1
  if (file !~ /\.h$/ || !(headers || file in annotated)) return
  count = split(includers[file], list, " ")
  for (i = 1; i <= count; ++i) visit(list[i])
}
