#pragma once

#include "bellows/recompute/checkpoint.h"
#include "bellows/recompute/compress.h"
