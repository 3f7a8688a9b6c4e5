#include "bellows/techniques/technique.h"

#include <utility>

#include "bellows/techniques/technique_rows.h"

namespace bellows::train {

std::string_view to_string(Exactness exactness) {
  switch (exactness) {
    case Exactness::exact:
      return "exact";
    case Exactness::rounding:
      return "rounding";
    case Exactness::lossy:
      return "lossy";
  }
  return "";
}

void register_techniques(Registry<Technique>& registry) {
  for (auto rows : {speed_techniques, precision_techniques, compile_techniques, averaging_techniques, course_techniques,
                    memory_techniques}) {
    for (Technique& technique : rows()) registry.add(std::move(technique));
  }
}

const Registry<Technique>& technique_table() {
  static const Registry<Technique> table = [] {
    Registry<Technique> made("technique");
    register_techniques(made);
    return made;
  }();
  return table;
}

std::string techniques_page(const Registry<Technique>& registry) {
  std::string page =
      "# Techniques\n\nGenerated from the registry by `bellows ladder --list`. Expected factors are of time per sample "
      "and of peak memory; below 1 is less.\n";
  for (const Technique& row : registry.rows()) {
    page += c10::str("\n## ", row.title, " (`", row.name, "`)\n\n", row.changes, "\n\n- Expected: time x ",
                     row.expected.time_factor, ", memory x ", row.expected.memory_factor, ". ", row.expected.words,
                     "\n- Exactness: ", to_string(row.exactness), row.tolerance.empty() ? "" : "; ", row.tolerance,
                     row.judged_by_target ? "\n- Judged by the time to the target." : "",
                     row.equal_batch ? "" : "\n- Not in the comparison at equal batch and learning rate.",
                     "\n- Source: ", row.source, "\n");
  }
  return page;
}

}  // namespace bellows::train
