#include "bits_cases.h"
#include "support.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

namespace bellows::tap::testing {
namespace {

/// Results and gradients of one case.
struct BitsOutcome {
  std::vector<at::Tensor> results, gradients;
};

BitsOutcome run_case(const BitsCase& one) {
  const BitsInputs inputs;
  torch::manual_seed(5);
  BitsOutcome outcome{one.run_with_backward(inputs), {}};
  for (const auto& leaf : inputs.leaves()) outcome.gradients.push_back(leaf.grad());
  return outcome;
}

bool equal_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return false;
    if (!a[i].defined()) continue;
    if (a[i].scalar_type() != b[i].scalar_type() || a[i].sizes() != b[i].sizes()) return false;
    const auto x = a[i].contiguous(), y = b[i].contiguous();
    if (x.nbytes() > 0 && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) != 0) return false;
  }
  return true;
}

void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (!a[i].defined() || !b[i].defined()) continue;
    EXPECT_TRUE(at::allclose(a[i], b[i], 1e-4, 1e-6, true));
  }
}

std::string difference(const BitsOutcome& plain, const BitsOutcome& tapped) {
  const bool results = !equal_bits(plain.results, tapped.results),
             gradients = !equal_bits(plain.gradients, tapped.gradients);
  return results && gradients ? "result, gradient" : results ? "result" : gradients ? "gradient" : "";
}

/// How the case differs under a tap that passes everything through.
std::string tapped_difference(const BitsCase& one) try {
  const BitsOutcome plain = run_case(one);
  EXPECT_EQ(difference(plain, run_case(one)), "") << "the plain run does not repeat";
  OpTapGuard guard(std::make_shared<NotingTap>());
  const BitsOutcome tapped = run_case(one);
  expect_close(plain.results, tapped.results);
  expect_close(plain.gradients, tapped.gradients);
  return difference(plain, tapped);
} catch (const c10::Error& error) {
  return std::string("throws: ") + error.what_without_backtrace();
}

std::vector<BitsCase> all_cases() {
  std::vector<BitsCase> cases;
  for (const auto& list : {pointwise_cases, reduction_cases, indexing_cases, matrix_cases, network_cases}) {
    cases.insert(cases.end(), list.begin(), list.end());
  }
  return cases;
}

/// The rows `| case | where |` of docs/tap-bits.md.
std::map<std::string, std::string> published_list() {
  std::map<std::string, std::string> rows;
  std::ifstream file(BELLOWS_SOURCE_DIR "/docs/tap-bits.md");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("| `", 0) != 0) continue;
    const size_t end = line.find('`', 3), where = line.find("| ", end) + 2;
    rows[line.substr(3, end - 3)] = line.substr(where, line.find(" |", where) - where);
  }
  return rows;
}

TEST(TapBits, ThePublishedListIsWhatHappens) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto published = published_list();
  std::map<std::string, std::string> found;
  const auto cases = all_cases();
  EXPECT_GE(cases.size(), 250u);
  for (const BitsCase& one : cases) {
    SCOPED_TRACE(one.name);
    const std::string where = tapped_difference(one);
    if (!where.empty()) found[one.name] = where;
  }
  at::set_num_threads(threads);
  EXPECT_EQ(found, published) << "docs/tap-bits.md and reality differ";
  EXPECT_FALSE(published.empty());
}

}  // namespace
}  // namespace bellows::tap::testing
