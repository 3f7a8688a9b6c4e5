#pragma once

#include "bellows/compile/compile.h"
