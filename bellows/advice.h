#pragma once

// Includes the component advice, which profiles the training step of a recipe and finds the settings that make it faster.
#include "bellows/advice/batch_sweep.h"
#include "bellows/advice/findings.h"
#include "bellows/advice/recipe_profile.h"
