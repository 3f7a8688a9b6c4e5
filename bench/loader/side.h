#pragma once

#include <string>
#include <vector>

namespace bellows::bench {

/// Our side as a separate process, so that its CPU time and memory can be measured. bench/peers/loader.py controls it with the protocol of
/// peer_process.h. `run N` runs N epochs. `usage` answers with the CPU time so far (s), the proportional set size (MB) and the anonymous
/// part of it (MB). `check FILE COUNT SIDE` writes the centers of the first COUNT images, SIDE × SIDE pixels, normalized, as floats
/// [COUNT, 3, SIDE, SIDE].
/// Params: kind – beton, raw, tar, pack or restart
///         folder – the folder of write_photographs()
///         threads – number of threads in addition to the calling thread
/// Returns: the program's exit code
int serve_side(const std::string& kind, const std::string& folder, int threads);

}  // namespace bellows::bench
