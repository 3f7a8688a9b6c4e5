#include "bellows/plan/price_list.h"

#include <c10/util/Exception.h>

#include <limits>
#include <set>

#include "bellows/plan/yaml_map.h"
#include "bellows/system/file.h"

namespace bellows::train {

namespace {

PricedMachine priced_machine(const YamlMap& map) {
  constexpr double needed = std::numeric_limits<double>::quiet_NaN();
  map.check_keys({"name", "price_per_hour", "memory_bytes", "memory_bytes_per_second", "flops"});
  PricedMachine machine{.name = map.text("name"),
                        .price_per_hour = map.number("price_per_hour", 0, 1e9, needed),
                        .memory_bytes = map.number("memory_bytes", 1, 1e18, needed),
                        .memory_bytes_per_second = map.number("memory_bytes_per_second", 1, 1e18, needed),
                        .flops = map.numbers("flops", {"fp32", "bf16", "fp16"}, 1, 1e21)};
  TORCH_CHECK_VALUE(!machine.name.empty(), map.where(), ": a price needs the name of its machine. Add the key name.");
  TORCH_CHECK_VALUE(!machine.flops.empty(), map.where(),
                    ": expected flops of fp32, bf16 or fp16, found none. Add a "
                    "line such as flops: {fp32: 67e12}.");
  return machine;
}

}  // namespace

PriceList parse_price_list(std::string_view text, const std::string& where) {
  const YamlMap map = YamlMap::parse(text, "prices: " + where);
  map.check_keys({"currency", "machines"});
  PriceList list{.currency = map.text("currency"), .machines = {}};
  std::set<std::string> names;
  for (const YamlMap& entry : map.list("machines")) {
    list.machines.push_back(priced_machine(entry));
    const std::string& name = list.machines.back().name;
    TORCH_CHECK_VALUE(names.insert(name).second, entry.where(), ": the machine \"", name,
                      "\" occurs twice. Remove one of them, or rename it.");
  }
  TORCH_CHECK_VALUE(!list.machines.empty(), "prices: ", where, ": the list has no machine. Add one under `machines`.");
  return list;
}

PriceList read_price_list(const std::string& path) {
  return parse_price_list(read_text_file(path), path);
}

}  // namespace bellows::train
