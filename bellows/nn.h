#pragma once

#include "bellows/nn/loss.h"
#include "bellows/nn/norm.h"
