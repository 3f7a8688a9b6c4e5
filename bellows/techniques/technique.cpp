#include "bellows/techniques/technique.h"

#include <cmath>
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

namespace {

/// "1.25× faster", "1.15× slower", "no change".
std::string speed_words(double time_factor) {
  if (time_factor == 1) return "no change";
  const bool faster = time_factor < 1;
  return c10::str(std::round(100 * (faster ? 1 / time_factor : time_factor)) / 100, "× ", faster ? "faster" : "slower");
}

std::string page_head(const Registry<Technique>& registry) {
  std::string head =
      "# Techniques\n\nA technique is a named change of a recipe that makes training faster or saves memory. "
      "`bellows ladder` measures the techniques on your model and data, in the order of this page. It keeps a "
      "technique only if its speedup is statistically significant and the run does not take longer to reach the "
      "target accuracy. `bellows ladder --memory` keeps the techniques that lower the peak memory and still reach the "
      "target "
      "accuracy. To use a technique without the ladder, set the recipe keys in its section.\n\n- **Expected speed** "
      "is per sample, and **peak memory** is relative to the same recipe without the technique. Both values are "
      "estimates. Measure them with your model on your machine.\n- **Exactness**: `exact` is bit-identical. "
      "`rounding` is the same mathematics in a different order. `lossy` is different mathematics. "
      "[numerics.md](numerics.md) lists the tolerances.\n\n`bellows ladder --list` generates this page.\n\n| "
      "technique | expected speed | expected peak memory | exactness |\n|---|---|---|---|\n";
  for (const Technique& row : registry.rows()) {
    head += c10::str("| ", row.title, " | ", speed_words(row.expected.time_factor), " | ", row.expected.memory_factor,
                     "× | ", to_string(row.exactness), " |\n");
  }
  return head;
}

}  // namespace

std::string expectation_lines(const Expectation& expected, Exactness exactness, const std::string& tolerance) {
  return c10::str("- Expected: time per sample × ", expected.time_factor, " (", speed_words(expected.time_factor),
                  "), peak memory × ", expected.memory_factor, ". ", expected.words,
                  "\n- Exactness: ", to_string(exactness), tolerance.empty() ? "" : "; ", tolerance);
}

std::string techniques_page(const Registry<Technique>& registry) {
  std::string page = page_head(registry);
  for (const Technique& row : registry.rows()) {
    std::string notes;
    if (row.judged_by_target) notes += "\n- The ladder judges it by the time to the target accuracy.";
    if (!row.equal_batch)
      notes += "\n- The ladder excludes it from the comparison at equal batch size and learning rate.";
    page += technique_section(row, notes);
  }
  return page;
}

}  // namespace bellows::train
