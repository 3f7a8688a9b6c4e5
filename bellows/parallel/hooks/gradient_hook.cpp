#include "bellows/parallel/hooks/gradient_hook.h"

#include <c10/util/Exception.h>

namespace bellows::parallel {

void GradientHook::restore(const NamedTensors& state) {
  TORCH_CHECK_VALUE(state.empty(), "gradient hook ", describe(), ": expected no state, got ", state.front().first,
                    ". It is another hook's.");
}

}  // namespace bellows::parallel
