#pragma once

/// Bellows' own version; CMake's project version is read from here.
#define BELLOWS_VERSION "0.1.0"
