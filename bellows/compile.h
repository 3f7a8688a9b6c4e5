#pragma once

// Includes the component compile, the public interface of compiled functions.
#include "bellows/compile/compile.h"
