#pragma once

#include "bellows/parallel/gradient_hook.h"
