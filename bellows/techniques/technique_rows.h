#pragma once

#include <c10/util/StringUtil.h>

#include <string>
#include <vector>

#include "bellows/techniques/technique.h"

namespace bellows::train {

// The rows of the table of techniques, in the order of the ladder.

/// If the model does not read images (or texts), returns this fact as the reason why a technique for such inputs does
/// not apply. Otherwise, returns an empty text.
std::string pictures_obstacle(const Recipe& recipe);
std::string texts_obstacle(const Recipe& recipe);
/// Returns an empty text if the hardware has bf16 arithmetic, and otherwise the reason why bf16 does not apply.
std::string bf16_obstacle(const Recipe& recipe, const Machine& machine);

/// The Markdown lines of a technique that describe its expected effect and its exactness, without a line break at the
/// end.
std::string expectation_lines(const Expectation& expected, Exactness exactness, const std::string& tolerance);

/// Returns the section of a technique in a page of techniques, as Markdown.
/// Params: row   – Technique, InferenceTechnique or ParallelTechnique
///         notes – more lines of the list, each after a line break
template <class Row>
std::string technique_section(const Row& row, const std::string& notes = "") {
  return c10::str("\n## ", row.title, " (`", row.name, "`)\n\n", row.changes, "\n\n",
                  expectation_lines(row.expected, row.exactness, row.tolerance), notes, "\n- Source: ", row.source,
                  "\n");
}

/// Techniques that execute the same training faster.
std::vector<Technique> speed_techniques();
/// Techniques that use lower precision.
std::vector<Technique> precision_techniques();
/// Techniques that run the same training with compiled functions.
std::vector<Technique> compile_techniques();
/// Averaged weights, which reduce the noise of evaluations. They come before all other techniques that are judged by
/// the time to target.
std::vector<Technique> averaging_techniques();
/// Techniques that change the course of training to reach the target earlier.
std::vector<Technique> course_techniques();
/// Techniques that need less memory, but more time.
std::vector<Technique> memory_techniques();

}  // namespace bellows::train
