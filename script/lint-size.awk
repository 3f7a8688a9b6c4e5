# Reports files over 400 lines and functions over 40: `file:line: what, expected`.
# Exceptions are read from the variable `exceptions`, a file of lines `file PATH reason…`, `function PATH:NAME reason…`.
#
# A brace opens a function body when the statement before it holds a parameter list and is no type, namespace, initialiser
# or member initialiser. Strings, characters, comments and preprocessor lines are removed first.

BEGIN {
  while ((getline line < exceptions) > 0) {
    if (split(line, word, " ") >= 3 && word[1] !~ /^#/) allowed[word[1] " " word[2]] = 1
  }
}

FNR == 1 {
  finish()
  path = FILENAME
  depth = 0
  inside = 0
  in_comment = in_raw = in_directive = 0
  statement = ""
}
{ lines = FNR; scan(strip($0)) }
END { finish() }

function finish() {
  if (path && lines > 400 && !(("file " path) in allowed))
    printf "%s:1: %d lines, expected at most 400\n", path, lines
}

# The line without what the compiler would not see as code.
function strip(line,   out, c, two, i, end) {
  if (in_directive || (!in_comment && !in_raw && line ~ /^[ \t]*#/)) {
    in_directive = (line ~ /\\$/)
    return ""
  }
  out = ""
  for (i = 1; i <= length(line); i++) {
    two = substr(line, i, 2)
    c = substr(line, i, 1)
    if (in_raw) {
      end = index(substr(line, i), raw_end)
      if (!end) return out
      i += end + length(raw_end) - 2
      in_raw = 0
    } else if (in_comment) {
      if (two == "*/") { in_comment = 0; i++ }
    } else if (two == "//") {
      return out
    } else if (two == "/*") {
      in_comment = 1
      i++
    } else if (two == "R\"") {
      end = index(substr(line, i), "(")
      raw_end = ")" substr(line, i + 2, end - 3) "\""
      in_raw = 1
      i += end - 1
      out = out "S"
    } else if (c == "\"" || (c == "'" && substr(line, i - 1, 1) !~ /[0-9a-fA-F]/)) {
      end = c
      for (i++; i <= length(line) && substr(line, i, 1) != end; i++)
        if (substr(line, i, 1) == "\\") i++
      out = out "S"
    } else {
      out = out c
    }
  }
  return out
}

function scan(code,   i, c) {
  for (i = 1; i <= length(code); i++) {
    c = substr(code, i, 1)
    if (c == "{") {
      open_brace()
    } else if (c == "}") {
      close_brace()
    } else if (c == ";" && !inside) {
      statement = ""
    } else if (!inside) {
      statement = statement c
      if (statement ~ /(^|[^:])(public|private|protected):$/) statement = ""
    }
  }
  if (!inside) statement = statement " "
}

# Scopes (namespaces, types) are looked into; initialisers are passed over; bodies are measured.
function open_brace() {
  depth++
  kind[depth] = "nested"
  if (inside) return
  if (is_scope(statement)) {
    kind[depth] = "scope"
    statement = ""
    return
  }
  inside = 1
  kind[depth] = is_body(statement) ? "body" : "initialiser"
  start = FNR
  name = function_name(statement)
}

function close_brace(   was) {
  was = kind[depth]
  if (depth) depth--
  if (was == "nested") return
  inside = 0
  if (was == "initialiser") return
  statement = ""
  if (was == "body" && FNR - start + 1 > 40 && !(("function " path ":" name) in allowed))
    printf "%s:%d: function %s has %d lines, expected at most 40\n", path, start, name, FNR - start + 1
}

function is_scope(text) {
  return text ~ /^[ ]*(export |inline )*(template *<[^(]*> *)?(inline )?(namespace|class|struct|enum|union|extern)([ ]|$)/ &&
         text !~ /\)[ ]*(const|noexcept|override|final|[ ])*$/
}

function is_body(text) {
  return text ~ /\)/ && text !~ /=[ ]*$/ && !(text ~ /[A-Za-z0-9_>]$/ && text ~ /\)[^()]*:/)
}

function function_name(text) {
  sub(/^[ ]+/, "", text)
  if (text ~ /^(TEST|TEST_F|TEST_P|TYPED_TEST|RC_GTEST_PROP|BENCHMARK_DEFINE_F) *\(/) {
    sub(/\).*/, "", text)
    gsub(/^[A-Z_]+ *\(|[ ]/, "", text)
    gsub(/,/, ".", text)
    return text
  }
  sub(/\(.*/, "", text)
  sub(/.*[ *&>]/, "", text)
  return text ? text : "(lambda)"
}
