# Counts test cases: reads ctest's JUnit file and, for the programs named in `reporting` (between spaces), GoogleTest's JSON
# report of the same name in the folder `results`.
# Prints what failed, then `N passed, N failed`; exits 1 unless all passed and there was something to count.

function attribute(line, key,   at, rest) {
  at = index(line, " " key "=\"")
  if (!at) return ""
  rest = substr(line, at + length(key) + 3)
  return substr(rest, 1, index(rest, "\"") - 1)
}

function number(line) {
  gsub(/[^0-9]/, "", line)
  return line + 0
}

function fail(what) {
  print "failed: " what
  failed++
}

# Adds the cases of one GoogleTest report; returns how many of them did not pass, or -1 when there is no report.
function count_report(program,   file, line, total, bad, suite, name) {
  file = results "/" program ".json"
  total = bad = 0
  while ((getline line < file) > 0) {
    if (line ~ /^  "tests": /) total = number(line)
    else if (line ~ /^      "name": /) { split(line, part, "\""); suite = part[4] }
    else if (line ~ /^          "name": /) { split(line, part, "\""); name = part[4] }
    else if (line ~ /^          "(status": "NOTRUN|result": "S[A-Z]*ED)"/) not_run[suite "." name] = 1
    else if (line ~ /^          "failures": /) { fail(program ": " suite "." name); bad++ }
  }
  close(file)
  if (!total) return -1
  for (name in not_run) {
    fail(program ": " name " did not run (skipped or disabled)")
    bad++
    delete not_run[name]
  }
  passed += total - bad
  return bad
}

function count_program(program, succeeded,   bad) {
  if (!index(reporting, " " program " ")) {
    if (succeeded) passed++
    else fail(program)
    return
  }
  bad = count_report(program)
  if (bad < 0) fail(program " ended without a report of its cases")
  else if (bad == 0 && !succeeded) fail(program " as a whole, though each of its cases passed")
}

/<testcase / { count_program(attribute($0, "name"), attribute($0, "status") == "run") }
END {
  printf "%d passed, %d failed\n", passed, failed
  exit !(passed > 0 && failed == 0)
}
