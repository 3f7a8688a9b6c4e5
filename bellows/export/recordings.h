#pragma once

#include <c10/util/Exception.h>

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bellows/export/recorder.h"
#include "bellows/export/sizes.h"

namespace bellows::export_detail {

/// An axis that is recorded with several sizes.
struct VariedAxis {
  std::string name{};
  std::vector<std::pair<size_t, size_t>> places{};  ///< inputs and axes
  std::vector<int64_t> sizes{};                     ///< three sizes for recordings; empty: to be chosen
};

/// The same function recorded with several sizes of its inputs. All recordings have the same operators on the same values.
struct Recordings {
  std::vector<RecordedCall> calls{};
  std::vector<std::vector<at::Tensor>> inputs{};  ///< of each call
  std::vector<Symbol> symbols{};
  std::vector<std::pair<size_t, size_t>> places{};  ///< for each symbol, the input and the axis that have its size
  std::vector<VariedAxis> axes{};                   ///< set by record_named(), as are the names
  std::vector<std::string> input_names{}, output_names{};
};

/// Records a function with the sizes of the example inputs, with another size of each axis, and with further sizes of all
/// axes. Inputs of other sizes repeat the elements of the example.
/// Throws: c10::ValueError like record_call(), if the function throws for all sizes that were tried, or if the operators
///         depend on the sizes
Recordings record_sizes(const Forward& function, const std::vector<at::Tensor>& inputs, std::vector<VariedAxis> axes,
                        std::span<const Named> named);

/// Returns translate(). If it throws c10::ValueError, the first call is recorded again with the places in the user's code,
/// which are slow to find, so that the message of the second translation contains them.
/// Params: named – see record_sizes()
template <class Translate>
auto translated(Recordings& recordings, const Forward& function, std::span<const Named> named,
                const Translate& translate) {
  try {
    return translate();
  } catch (const c10::ValueError&) {
    recordings.calls[0] = record_call(function, recordings.inputs[0], named, /*sites=*/true);
    return translate();
  }
}

}  // namespace bellows::export_detail
