# Writes each block of a Markdown file that is marked test=NAME to NAME.cpp or NAME.sh in the folder `out`.
# C++ without a main is put into one, its #include lines before it. The last command of a block with exit=N must fail with status N.

/^```/ && !inside {
  if (!match($0, /test=[A-Za-z0-9_]+/)) { inside = "other"; next }
  name = substr($0, RSTART + 5, RLENGTH - 5)
  inside = $0 ~ /^```cpp/ ? "cpp" : $0 ~ /^```console/ ? "console" : "sh"
  expected = match($0, /exit=[0-9]+/) ? substr($0, RSTART + 5, RLENGTH - 5) : ""
  head = body = ""
  has_main = 0
  next
}
/^```/ && inside {
  file = out "/" name (inside == "cpp" ? ".cpp" : ".sh")
  if (inside == "cpp" && !has_main) printf "%s\nint main() {\n%s}\n", head, body >file
  else if (expected != "") printf "set +e\n%s(($? == %s))\n", body, expected >file
  else if (inside != "other") printf "%s%s", head, body >file
  if (inside != "other") close(file)
  inside = ""
  next
}
inside == "cpp" {
  if (/^#include/ || /^namespace [A-Za-z_]+ = /) head = head $0 "\n"
  else body = body $0 "\n"
  if (/^int main\(/) has_main = 1
}
inside == "console" && /^\$ / { body = body substr($0, 3) "\n" }
inside == "sh" { body = body $0 "\n" }
