#pragma once

// Includes the component techniques: the table of techniques that make training faster or reduce its memory.
#include "bellows/techniques/technique.h"
