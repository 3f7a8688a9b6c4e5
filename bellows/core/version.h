#pragma once

/// The version of Bellows. CMake reads the project version from this line.
#define BELLOWS_VERSION "0.1.0"
