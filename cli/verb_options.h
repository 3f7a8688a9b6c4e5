#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

/// The options of each verb, with their help and the checks of their values.
///
/// Each function adds a verb to `app` and returns it. Parsing fills `arguments`, which must live as long as `app`.
namespace bellows::cli {

CLI::App* add_train(CLI::App& app, TrainArguments& arguments);
CLI::App* add_ladder(CLI::App& app, LadderArguments& arguments);
/// Adds the options of the ladder that compare recipes and techniques for several ranks.
void add_ladder_comparison(CLI::App* verb, LadderArguments& arguments);
CLI::App* add_plan(CLI::App& app, PlanArguments& arguments);
/// Adds the options of `bellows plan` for the size of the step and the ranks, and those for limits and cost.
void add_planned_step(CLI::App* verb, PlanArguments& arguments);
void add_plan_limits(CLI::App* verb, PlanArguments& arguments);
CLI::App* add_profile(CLI::App& app, ProfileArguments& arguments);
CLI::App* add_schedule(CLI::App& app, ScheduleArguments& arguments);
CLI::App* add_simulate(CLI::App& app, SimulateArguments& arguments);
CLI::App* add_tune(CLI::App& app, TuneArguments& arguments);
CLI::App* add_import(CLI::App& app, ImportArguments& arguments);
CLI::App* add_select(CLI::App& app, SelectArguments& arguments);
CLI::App* add_quantize(CLI::App& app, QuantizeArguments& arguments);
CLI::App* add_export(CLI::App& app, ExportArguments& arguments);
CLI::App* add_distill(CLI::App& app, DistillArguments& arguments);
CLI::App* add_evaluate(CLI::App& app, EvaluateArguments& arguments);
CLI::App* add_predict(CLI::App& app, PredictArguments& arguments);
CLI::App* add_pack(CLI::App& app, PackArguments& arguments);
CLI::App* add_make_data(CLI::App& app, MakeDataArguments& arguments);
CLI::App* add_bench_data(CLI::App& app, BenchDataArguments& arguments);
CLI::App* add_bench_model(CLI::App& app, BenchModelArguments& arguments);
CLI::App* add_serve(CLI::App& app, ServeArguments& arguments);
CLI::App* add_launch(CLI::App& app, LaunchArguments& arguments);
CLI::App* add_checkpoint(CLI::App& app, CheckpointArguments& arguments);
CLI::App* add_cache(CLI::App& app, CacheArguments& arguments);
CLI::App* add_doctor(CLI::App& app, DoctorArguments& arguments);

}  // namespace bellows::cli
