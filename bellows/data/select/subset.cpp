#include "bellows/data/select/subset.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "bellows/core/seed.h"
#include "bellows/io/bytes.h"
#include "bellows/io/tables/json_impl.h"
#include "bellows/io/tables/number_text.h"
#include "bellows/system/file.h"

namespace bellows::data {

namespace {

using SubsetJson = nlohmann::json;

constexpr const char* kSubsetKey = "bellows_subset";
constexpr int kSubsetVersion = 1;

void check_subset(const std::string& path, const Subset& subset) {
  for (size_t i = 0; i < subset.ids.size(); ++i) {
    const int64_t id = subset.ids[i];
    TORCH_CHECK_VALUE(id >= 0 && id < subset.of, "subset: ", path, ": expected ids in [0, ", subset.of, "), got ", id,
                      ".");
    TORCH_CHECK_VALUE(i == 0 || subset.ids[i - 1] < id, "subset: ", path, ": expected ascending ids, each once, got ",
                      subset.ids[i - (i > 0)], " before ", id, ".");
  }
}

template <class T, class Fits>
T subset_member(const SubsetJson& document, const char* key, const std::string& path, const char* expected,
                const Fits& fits) {
  const auto found = document.find(key);
  TORCH_CHECK_VALUE(found != document.end() && fits(*found), "load_subset: ", path, ": expected \"", key, "\" to be ",
                    expected, ", found ", found == document.end() ? "none" : io::shown_json(*found), ".");
  return found->get<T>();
}

bool is_count(const SubsetJson& value) {
  return value.is_number_integer() && value >= 0 && value <= INT64_MAX;
}

}  // namespace

void save_subset(const std::string& path, Subset subset) {
  std::sort(subset.ids.begin(), subset.ids.end());
  check_subset(path, subset);
  SubsetJson document = {{kSubsetKey, kSubsetVersion},
                         {"source", subset.source},
                         {"rule", subset.rule},
                         {"of", subset.of},
                         {"ids", subset.ids}};
  for (const std::string& text : {subset.source, subset.rule}) {
    TORCH_CHECK_VALUE(io::is_utf8(text), "save_subset: cannot write ", path, ": expected UTF-8 text, got ",
                      io::printable(text), ". Choose another rule or rename the dataset.");
  }
  write_text_file(path, document.dump() + "\n");
}

Subset load_subset(const std::string& path) {
  const MappedFile file(path);
  return parse_subset(io::as_text(file.bytes()), path);
}

Subset parse_subset(std::string_view text, const std::string& path) {
  const SubsetJson document = io::parse_shallow_json(text, "load_subset: " + path);
  TORCH_CHECK_VALUE(document.is_object() && document.contains(kSubsetKey), "load_subset: ", path,
                    " is not a subset file: expected ", "a JSON object with \"", kSubsetKey,
                    "\", which `bellows select` writes, found ", io::describe_content(io::as_bytes(text)), ".");
  const auto version = subset_member<int64_t>(document, kSubsetKey, path, "a version", is_count);
  TORCH_CHECK_VALUE(version == kSubsetVersion, "load_subset: ", path, " has version ", version,
                    ", but this program reads version ", kSubsetVersion, ".");
  const auto is_text = [](const SubsetJson& value) { return value.is_string(); };
  const auto are_ids = [](const SubsetJson& value) {
    return value.is_array() && std::all_of(value.begin(), value.end(), is_count);
  };
  Subset subset{.source = subset_member<std::string>(document, "source", path, "a text", is_text),
                .rule = subset_member<std::string>(document, "rule", path, "a text", is_text),
                .of = subset_member<int64_t>(document, "of", path, "a number of samples", is_count),
                .ids = subset_member<std::vector<int64_t>>(document, "ids", path, "a list of ids", are_ids)};
  check_subset(path, subset);
  return subset;
}

std::vector<int64_t> random_subset(int64_t samples, int64_t count, uint64_t seed) {
  return greatest(std::vector<double>(static_cast<size_t>(std::max<int64_t>(samples, 0))), count, seed);
}

std::vector<int64_t> greatest(const std::vector<double>& values, int64_t count, uint64_t seed) {
  const auto n = static_cast<int64_t>(values.size());
  TORCH_CHECK_VALUE(count >= 0 && count <= n, "select: expected to choose 0 to ", n, " samples, got ", count, ".");
  for (size_t i = 0; i < values.size(); ++i)
    TORCH_CHECK_VALUE(values[i] == values[i], "select: the value of sample ", i, " is NaN.");
  std::vector<int64_t> ids = random_permutation(n, seed);
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  ids.resize(static_cast<size_t>(count));
  std::sort(ids.begin(), ids.end());
  return ids;
}

std::vector<int64_t> greatest_per_class(const std::vector<double>& values, const std::vector<int64_t>& labels,
                                        int64_t count, uint64_t seed) {
  TORCH_CHECK_VALUE(values.size() == labels.size(), "select: ", values.size(), " values but ", labels.size(),
                    " labels.");
  const auto n = static_cast<int64_t>(values.size());
  TORCH_CHECK_VALUE(count >= 0 && count <= n, "select: expected to choose 0 to ", n, " samples, got ", count, ".");
  std::map<int64_t, std::vector<int64_t>> classes;
  for (size_t i = 0; i < labels.size(); ++i) classes[labels[i]].push_back(static_cast<int64_t>(i));
  std::vector<int64_t> ids;
  int64_t before = 0, chosen = 0;  // samples of the classes so far, and the number of chosen ones
  for (const auto& [label, members] : classes) {
    before += static_cast<int64_t>(members.size());
    const auto until =
        static_cast<int64_t>(static_cast<double>(before) / static_cast<double>(n) * static_cast<double>(count) + 0.5);
    const int64_t share = std::clamp<int64_t>(until - chosen, 0, static_cast<int64_t>(members.size()));
    chosen += share;
    std::vector<double> of_class;
    for (const int64_t id : members) of_class.push_back(values[static_cast<size_t>(id)]);
    for (const int64_t i : greatest(of_class, share, mix_seed(seed, static_cast<uint64_t>(label))))
      ids.push_back(members[static_cast<size_t>(i)]);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace bellows::data
